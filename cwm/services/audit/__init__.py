"""Audit: who did what, recorded, checked and kept up."""
