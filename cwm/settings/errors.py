"""The error that every part of the settings raises."""

from __future__ import annotations


class SettingsError(Exception):
    """A setting is unusable. The message names it, its source and the problem."""
