"""Rate limits and concurrency counts in Redis."""
