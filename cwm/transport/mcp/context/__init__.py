"""Shared context over MCP: tools, resources, schemas."""
