"""Upstream servers over MCP: their lists and calls."""
