"""vLLM: its HTTP API, and the request and answer formats of a turn."""
