"""Benchmarks: commands that measure side by side in one run and print a table and JSON."""
