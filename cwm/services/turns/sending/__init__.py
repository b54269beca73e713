"""Sending: requests to engines, and their answers on the way to clients."""
