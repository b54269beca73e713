"""Converts the services' records to the answers of tools."""
