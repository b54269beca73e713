"""The parts of ``cwm bench main``, and how often each repeats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Part(StrEnum):
    """In the order in which they run."""

    FREEZE = "freeze"
    THAW = "thaw"
    PASS_THROUGH = "pass-through"  # noqa: S105 - no password
    FIRST_BYTE = "first-byte"
    MEMORY = "memory"
    START = "start"
    LISTS = "lists"


@dataclass(frozen=True, slots=True)
class Repetitions:
    """How often each figure is measured; ``freezes`` and ``cold_prefills`` by size of the context.

    ``rounds`` are batches of requests to each side, or as many more as make ``requests``; ``series`` is how many
    requests each client sends in its own time. The first of each of these three is not counted.
    """

    freezes: tuple[int, ...] = (3, 3, 3, 2)
    cold_prefills: tuple[int, ...] = (2, 2, 2, 1)
    thaws: int = 3
    rounds: int = 4
    requests: int = 10
    series: int = 3

    def rounds_of(self, clients: int) -> int:
        return max(self.rounds, self.requests // clients)


# Batches of the same requests to the same vLLM take 10 % more or less: fewer rounds give rougher ratios. One request's
# first byte varies by 30 ms where the engine computes its prompt.
THOROUGH: Final = Repetitions((5, 5, 5, 5), (3, 3, 3, 3), thaws=5, rounds=17, requests=40, series=4)
