"""Benchmarks that the `specds bench` command runs."""
