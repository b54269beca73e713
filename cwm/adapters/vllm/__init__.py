"""vLLM: its HTTP API, and the request and response formats of a turn."""
