"""Layers around every MCP message: limits, metrics, spans."""
