"""Agent sessions and the ContextManager that serves each."""
