"""Pages about the gateway itself: whether all is well, what turns cost, what changes."""
