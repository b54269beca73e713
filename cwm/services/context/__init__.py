"""Shared context: keys, versions, scopes and snapshots."""
