"""Shared context and stored results in SQL."""
