"""Benchmark of real models by kind of request."""
