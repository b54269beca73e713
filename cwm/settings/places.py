"""Why what a setting names cannot be made."""

from __future__ import annotations

import os
from pathlib import Path


def refusal(path: Path, refused: OSError) -> str:
    """What the system says, or which file stands where a folder above ``path`` would have to be."""
    for above in reversed(path.parents):
        if os.path.lexists(above) and not os.path.isdir(above):  # noqa: PTH112 - raises nothing
            return f"{above} is not a folder"
    return refused.strerror or str(refused)
