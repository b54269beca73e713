"""Recording: turns in flight, and their place in the tree."""
