"""MCP clients for the upstream servers, over HTTP and stdio."""
