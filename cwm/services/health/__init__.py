"""Health: what is up, what doctor finds, what is counted."""
