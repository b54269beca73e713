"""Agent sessions and change notifications in Redis."""
