"""Tool results: token budgets, previews, stored results and queries over them."""
