"""Tool results over MCP: budgets, previews, `result_read` and `result_query`."""
