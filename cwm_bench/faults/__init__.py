"""Benchmark of fault detection in stored chunks."""
