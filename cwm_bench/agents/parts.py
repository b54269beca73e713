"""The parts of ``cwm bench agents``."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class AgentsPart(StrEnum):
    """In the order in which they run."""

    FIRST_BYTE = "first-byte"
    THROUGHPUT = "throughput"
    RESUME = "resume"


# Rough, on two quiet cores with the default model.
SECONDS: Final = {AgentsPart.FIRST_BYTE: 320.0, AgentsPart.THROUGHPUT: 500.0, AgentsPart.RESUME: 240.0}
