"""Shared context and stored results in Redis."""
