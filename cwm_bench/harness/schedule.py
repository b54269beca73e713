"""The parts of a benchmark one after the other, each with the time that it is expected to take."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from cwm_bench.harness.figures import Report, Section

    Measured: TypeAlias = tuple[Section, dict[str, Any]]

PartT = TypeVar("PartT", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Schedule(Generic[PartT]):
    """Measures the expected parts one after the other, and publishes the report after each.

    ``estimates`` holds the parts still to come, and the seconds that each takes.
    """

    report: Report
    estimates: dict[PartT, float]
    progress: Callable[[str], None]
    publish: Callable[[Report], None]

    def expect(self, estimates: dict[PartT, float]) -> None:
        self.estimates.update(estimates)
        each = ", ".join(f"{part} {duration(seconds)}" for part, seconds in estimates.items())
        self.progress(f"this takes {self._rest()}: {each}")

    async def measure(self, part: PartT, work: Callable[[], Awaitable[Measured]]) -> None:
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


def in_order(parts: type[PartT], choice: Sequence[PartT]) -> list[PartT]:
    """``choice`` once each and in the order of ``parts``; all of them if none is chosen."""
    return [part for part in parts if part in choice or not choice]


def duration(seconds: float) -> str:
    """In minutes and seconds, as people read it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
