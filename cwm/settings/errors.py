"""What every part of the settings raises."""

from __future__ import annotations


class SettingsError(Exception):
    """A setting that cannot be used: the message names it, where it came from and what is wrong."""
