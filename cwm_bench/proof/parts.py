"""The companies of ``cwm bench proof``."""

from __future__ import annotations

from enum import StrEnum


class Company(StrEnum):
    """``streams``: eight answers being decoded. ``prefills``: two prompts being computed, one after the other, all the time."""

    ALONE = "alone"
    STREAMS = "streams"
    PREFILLS = "prefills"
