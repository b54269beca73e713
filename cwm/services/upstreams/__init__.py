"""Upstreams: the MCP servers behind CWM, their links, calls and listings."""
