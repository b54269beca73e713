"""Benchmark of a million windows."""
