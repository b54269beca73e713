"""One MCP request: who asks, with which permissions, and how errors are rendered."""
