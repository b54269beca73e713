"""Metrics: what is counted and timed, independent of how it is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from cwm.ports.kv_tier import TierUsage


class Meter(Protocol):
    def operation(self, name: str) -> AbstractContextManager[None]:
        """Count and time one operation. An exception sets its status to 'error' and propagates."""

    def tokens(self, source: str, count: int) -> None:
        """Count prompt tokens by the source of their KV."""

    def result_tokens(self, *, had: int, delivered: int, read_later: int) -> None:
        """Count a tool result's tokens: in the result, delivered, and taken by follow-up reads."""

    def drift(self, own_count: int, model_count: int) -> None:
        """Record how many tokens CWM counted in a text, and how many the served model counts."""

    def event(self, name: str) -> None:
        """Count an event."""

    def watched(self, outcome: str) -> None:
        """Count one run of the watchdog by its outcome."""

    def instances(self, healthy: Mapping[str, bool]) -> None:
        """Record which LMCache instances return what they store; instances that are not named no longer exist."""

    def thaw_phase(self, phase: str, elapsed_ms: float) -> None:
        """Record the duration of one phase of a thaw: ``prefetch``, ``engine`` or ``verify``."""

    def verified(self, outcome: str) -> None:
        """Count one thaw, or move, by the verdict on its restored KV."""


class RequestMeter(Protocol):
    """Counts requests at the faces. Every label value comes from a small set that the gateway defines."""

    def http_begun(self, face: str, route: str) -> None: ...

    def http_ended(self, face: str, route: str, status: str, seconds: float | None) -> None:
        """Count a finished request. ``status`` is ``2xx`` and so on, or ``left`` when the client disconnected first.

        ``seconds`` is None for a request whose duration means nothing.
        """

    def http_answered(self, face: str, seconds: float) -> None:
        """Record how long a client waited for the first byte of a body, in seconds."""

    def mcp_begun(self) -> None: ...

    def mcp_ended(self, method: str, era: str, outcome: str, seconds: float | None) -> None:
        """Count a finished MCP request. ``seconds`` is None for one whose duration means nothing."""

    def mcp_failed(self, code: str) -> None:
        """Count one coded error returned to an MCP client."""

    def tool_called(self, tool: str, era: str, outcome: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Contents (shared context, stored results) in this process's memory.

    ``reads`` by outcome since the start: ``hit``, ``warm_hit`` (decompressed) and ``miss`` (read from the shared store).
    """

    reads: Mapping[str, int] = field(default_factory=dict)
    used_bytes: int = 0
    limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """The current state of the system. None means that it could not be determined.

    ``components`` says which of them answer, ``engines`` which of several engines do, ``engine_sessions`` how many live sessions each
    serves, ``engine_drains`` which are being drained; ``database_transactions`` counts transactions that run or wait for one
    of the ``database_connections``.
    """

    sessions: Mapping[str, int] | None = None
    windows: Mapping[str, int] | None = None
    tiers: Sequence[TierUsage] = ()
    components: Mapping[str, bool] = field(default_factory=dict)
    upstreams: Mapping[str, bool] = field(default_factory=dict)
    engines: Mapping[str, bool] = field(default_factory=dict)
    engine_sessions: Mapping[str, int] | None = None
    engine_drains: Mapping[str, bool] | None = None
    agent_sessions: int = 0
    context: MemoryUse = field(default_factory=MemoryUse)
    database_transactions: int = 0
    database_connections: int = 0


class Observed(Protocol):
    def now(self) -> Standing:
        """The last known state, without any request."""

    async def look(self) -> None:
        """Refresh the values that are only queried on demand; bounded in time, and rate-limited."""

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One series and its current value. ``type`` is the Prometheus type name."""

    name: str
    type: str
    value: float
    labels: Mapping[str, str]


class Metrics(Protocol):
    """All metrics, in two formats. Without ``buckets``, histograms have only sum and count."""

    def text(self, *, buckets: bool = True) -> str:
        """In Prometheus' text format."""

    def samples(self, *, buckets: bool = True) -> list[Sample]: ...

    async def look(self) -> None:
        """Refresh the values that are only queried on demand; see :meth:`Observed.look`."""


class Telemetry(RequestMeter, Metrics, Protocol):
    """What a face needs: metering its requests and reading all metrics."""
