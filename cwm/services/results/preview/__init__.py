"""Previews: the shortened form of a result over its budget."""
