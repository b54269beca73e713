"""The parts of ``cwm bench tree``."""

from __future__ import annotations

from enum import StrEnum


class TreePart(StrEnum):
    """``recording`` needs no engine."""

    CHECKOUT = "checkout"
    RECORDING = "recording"
