"""Benchmark of a GPU: correctness and speed against thresholds."""
