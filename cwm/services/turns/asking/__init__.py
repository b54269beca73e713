"""Asking: what is sent to the engine for a request, and the turn that is recorded as asked."""
