"""API keys of the tenant, and the limits on who looks."""
