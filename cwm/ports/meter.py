"""What is counted and timed, without saying how it is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from cwm.ports.kv_tier import TierUsage


class Meter(Protocol):
    def operation(self, name: str) -> AbstractContextManager[None]:
        """Count and time one operation; an exception makes its status 'error' and passes on."""

    def tokens(self, source: str, count: int) -> None:
        """Count prompt tokens by where their KV came from."""

    def result_tokens(self, *, had: int, delivered: int, read_later: int) -> None:
        """Count what a tool's result held, what of it was delivered, and what follow-up reads took."""

    def drift(self, counted: int, served: int) -> None:
        """Note how many tokens CWM counted in a text, and how many the served model makes of it."""

    def event(self, name: str) -> None:
        """Count something that happened."""

    def watched(self, outcome: str) -> None:
        """Count one look of the watchdog."""

    def instances(self, healthy: Mapping[str, bool]) -> None:
        """Say which LMCache instances give back what they store; one that is not named is gone."""

    def thaw_phase(self, phase: str, elapsed_ms: float) -> None:
        """Note how long one phase of a thaw took: ``prefetch``, ``engine`` or ``verify``."""

    def verified(self, outcome: str) -> None:
        """Count one thaw by what the replay of its canary showed."""


class RequestMeter(Protocol):
    """Requests as the faces see them. Every label is one of a few names that the gateway itself knows."""

    def http_begun(self, face: str, route: str) -> None: ...

    def http_ended(self, face: str, route: str, status: str, seconds: float | None) -> None:
        """``status`` is ``2xx`` and so on, or ``left``; no ``seconds`` for one whose length says nothing."""

    def http_answered(self, face: str, seconds: float) -> None:
        """Note how long a client waited for the first byte of a body."""

    def mcp_begun(self) -> None: ...

    def mcp_ended(self, method: str, era: str, outcome: str, seconds: float | None) -> None: ...

    def mcp_failed(self, code: str) -> None:
        """Count one coded error that an MCP client was told."""

    def tool_called(self, tool: str, era: str, outcome: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Standing:
    """What there is at this moment. None is what could not be asked.

    ``components`` says which of them answer, ``database_transactions`` run or wait for one of the
    ``database_connections``.
    """

    sessions: Mapping[str, int] | None = None
    windows: Mapping[str, int] | None = None
    tiers: Sequence[TierUsage] = ()
    components: Mapping[str, bool] = field(default_factory=dict)
    upstreams: Mapping[str, bool] = field(default_factory=dict)
    agent_sessions: int = 0
    database_transactions: int = 0
    database_connections: int = 0


class Observed(Protocol):
    def now(self) -> Standing:
        """What is known, without asking anybody."""

    async def look(self) -> None:
        """Ask again what is only asked when somebody wants to know; bounded, and no more often than it should be."""

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One series and its value now. ``type`` is Prometheus' word for what it is."""

    name: str
    type: str
    value: float
    labels: Mapping[str, str]


class Metrics(Protocol):
    """Everything that was metered, in either form; without ``buckets``, histograms by sum and count only."""

    def text(self, *, buckets: bool = True) -> str:
        """Prometheus' text format."""

    def samples(self, *, buckets: bool = True) -> list[Sample]: ...

    async def look(self) -> None:
        """Bring up to date what is only asked when somebody wants to know; see :meth:`Observed.look`."""


class Telemetry(RequestMeter, Metrics, Protocol):
    """What a face needs: to meter, and to tell what was metered."""
