"""The companies and the layouts of KV of ``cwm bench proof``."""

from __future__ import annotations

from enum import StrEnum


class Company(StrEnum):
    """``streams``: eight answers being decoded. ``prefills``: two prompts being computed, one after the other, all the time."""

    ALONE = "alone"
    STREAMS = "streams"
    PREFILLS = "prefills"


class Layout(StrEnum):
    """``full``: the model of the settings. ``fp8``: the same with KV of eight bits. ``windows``: a tiny model of which five of six layers see 64 tokens."""

    FULL = "full"
    FP8 = "fp8"
    WINDOWS = "windows"
