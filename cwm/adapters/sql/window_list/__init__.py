"""Listing and searching windows in SQL."""
