"""Upkeep: reconciliation, retention, patrol and the watchdog."""
