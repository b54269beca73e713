"""Finding: the session that a request or a tool call belongs to."""
