"""What is counted and timed, without saying how it is published."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


class Meter(Protocol):
    def operation(self, name: str) -> AbstractContextManager[None]:
        """Count and time one operation; an exception makes its status 'error' and passes on."""

    def tokens(self, source: str, count: int) -> None:
        """Count prompt tokens by where their KV came from."""

    def drift(self, counted: int, served: int) -> None:
        """Note how many tokens CWM counted in a text, and how many the served model makes of it."""

    def event(self, name: str) -> None:
        """Count something that happened."""

    def watched(self, outcome: str) -> None:
        """Count one look of the watchdog."""

    def instances(self, healthy: Mapping[str, bool]) -> None:
        """Say which LMCache instances give back what they store; one that is not named is gone."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series and its value now. ``type`` is Prometheus' word for what it is."""

    name: str
    type: str
    value: float
    labels: Mapping[str, str]


class Metrics(Protocol):
    """Everything that was metered, in either form."""

    def text(self) -> str:
        """Prometheus' text format."""

    def samples(self) -> list[Sample]: ...
