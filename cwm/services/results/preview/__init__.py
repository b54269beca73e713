"""Previews: what a result over its budget shows."""
