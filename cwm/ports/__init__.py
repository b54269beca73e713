"""Ports: the Protocols through which services reach the outside world."""
