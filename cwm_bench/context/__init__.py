"""Benchmarks of shared context and result budgets."""
