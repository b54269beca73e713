"""LMCache: the KV tiers beside an engine, through its HTTP API."""
