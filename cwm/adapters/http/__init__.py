"""Connections for the gateway's HTTP clients."""
