"""KV: storing, verifying, planning and releasing the chunks of a prefix."""
