"""The parts of ``cwm bench main``, how often each repeats, and one part after the other."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from cwm_bench.harness.figures import Report, Section

    Measured: TypeAlias = tuple[Section, dict[str, Any]]


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


@dataclass(frozen=True, slots=True)
class Schedule:
    """Measures the expected parts one after the other, and publishes the report after each.

    ``estimates`` holds the parts still to come, and the seconds that each takes.
    """

    report: Report
    estimates: dict[Part, float]
    progress: Callable[[str], None]
    publish: Callable[[Report], None]

    def expect(self, estimates: dict[Part, float]) -> None:
        self.estimates.update(estimates)
        each = ", ".join(f"{part} {duration(seconds)}" for part, seconds in estimates.items())
        self.progress(f"this takes {self._rest()}: {each}")

    async def measure(self, part: Part, work: Callable[[], Awaitable[Measured]]) -> None:
        """Do nothing when the part is not expected."""
        if part not in self.estimates:
            return
        self.progress(f"{part}: about {duration(self.estimates[part])} of {self._rest()}")
        started = time.monotonic()
        section, summary = await work()
        self.report.sections.append(section)
        self.report.summary |= summary
        self.report.context["parts"].append(part.value)
        del self.estimates[part]
        self.publish(self.report)
        rest = f"; {self._rest()} to go" if self.estimates else ""
        self.progress(f"{part} took {duration(time.monotonic() - started)}{rest}")

    def _rest(self) -> str:
        return f"about {duration(sum(self.estimates.values()))}"


def in_order(parts: Sequence[Part]) -> list[Part]:
    """``parts`` once each and in their order; all of them if there are none."""
    return [part for part in Part if part in parts or not parts]


def duration(seconds: float) -> str:
    """In minutes and seconds, as people read it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
