"""Surroundings: what clients put in front of the first question, and write anew at each start."""

from __future__ import annotations

import re
from typing import Final

from cwm.domain.clients.known import CLIENTS

# A list of files, the state of a repository, the day: none of it was said by anybody.
_BLOCKS: Final = (
    "system-reminder",
    "context",
    "environment_context",
    "environment_details",
    "env",
    "user_info",
    "git_status",
    "project_layout",
    "file_tree",
)
_TAG: Final = re.compile(rf"<(/?)({'|'.join(_BLOCKS)})(?=[\s>/])[^<>]{{0,400}}>", re.IGNORECASE)
# A search holds up all other threads as long as it takes.
_READ_CHARS: Final = 2**20
_PREFACES: Final = tuple(client.preface for client in CLIENTS if client.preface)


def without_surroundings(text: str) -> str:
    """A text without the blocks that clients write anew in its first million characters; empty if it has nothing else."""
    if text.lstrip().startswith(_PREFACES):
        return ""
    pieces, end, opened = [], 0, ""
    for tag in _TAG.finditer(text, 0, _READ_CHARS):
        is_end, name = bool(tag.group(1)), tag.group(2).lower()
        if not opened and not is_end:
            pieces.append(text[end : tag.start()])
            opened, end = name, tag.start()
        elif opened == name and is_end:
            opened, end = "", tag.end()
    return "".join([*pieces, text[end:]]).strip()
