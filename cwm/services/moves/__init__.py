"""Moves: a session goes to another engine with its KV, and all sessions of an engine that is drained do."""
