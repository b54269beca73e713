"""Shortens texts: to whole sentences, whole lines, or between words."""
