"""Asking: where a request belongs, and what is sent to the engine for it."""
