"""How commands reach a gateway: as an MCP client that repeats what cannot be answered now."""
