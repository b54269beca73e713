"""The OpenAI-compatible face."""
