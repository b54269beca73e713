"""Access: authentication, API keys, rate limits, refusals."""
