"""Audit: records who did what, verifies the log, and prunes it."""
