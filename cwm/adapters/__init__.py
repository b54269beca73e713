"""Adapters: what stands behind the ports, a folder per thing outside."""
