"""Explains why a configured path cannot be created."""

from __future__ import annotations

import os
from pathlib import Path


def refusal(path: Path, error: OSError) -> str:
    """The system's message, or which file is in the place of a folder above ``path``."""
    for above in reversed(path.parents):
        if os.path.lexists(above) and not os.path.isdir(above):  # noqa: PTH112 - raises nothing
            return f"{above} is not a folder"
    return error.strerror or str(error)
