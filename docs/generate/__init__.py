"""Generates the parts of README.md and docs/ that follow from the code."""
