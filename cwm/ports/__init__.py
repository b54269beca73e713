"""Protocols: what the services need from outside."""
