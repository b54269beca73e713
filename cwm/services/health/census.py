"""Census: gathers the figures of /metrics when it is scraped, so that nothing is queried without a scrape."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cwm.background import cancel_and_wait
from cwm.domain.errors import CwmError
from cwm.ports.clock import Clock
from cwm.ports.kv_tier import TierUsage
from cwm.ports.meter import MemoryUse, Standing
from cwm.ports.registry import Stock
from cwm.services.agents.agents import Agents
from cwm.services.contents.cache import ContentCache
from cwm.services.health.inspect import ENGINE, UPSTREAM, Inspect, Status
from cwm.services.upstreams.link import LinkState

_PATIENCE_SECONDS: Final = 2.0
_PAUSE_AFTER_COUNTING: Final = 50.0

_log = logging.getLogger("cwm.census")


class DatabaseLoad(Protocol):
    """How busy a database is: transactions that run or wait for one of its connections."""

    @property
    def connections(self) -> int: ...

    @property
    def transactions(self) -> int: ...


class Census:
    """Queries the registry, the tiers and every component, each at most every ``refresh_seconds``.

    After counting the registry it pauses for fifty times as long as the count took: a very large registry is counted
    less often, and for at most a fiftieth of the time. A scrape waits at most two seconds for queries; the next one
    shows their results.
    """

    def __init__(
        self,
        inspect: Inspect,
        agents: Agents,
        database: DatabaseLoad,
        contents: ContentCache,
        clock: Clock,
        refresh_seconds: float,
    ) -> None:
        self._inspect = inspect
        self._agents = agents
        self._database = database
        self._contents = contents
        self._stock: Stock | None = None
        self._sessions_of_engines: Mapping[str, int] = {}
        self._drained: frozenset[str] = frozenset()
        self._tiers: Sequence[TierUsage] = ()
        self._components: dict[str, bool] = {}
        self._questions = [
            _Question(self._check, clock, refresh_seconds),
            _Question(self._weigh, clock, refresh_seconds),
            _Question(self._count, clock, refresh_seconds, rest=_PAUSE_AFTER_COUNTING),
        ]

    async def look(self) -> None:
        """Start the queries that are due and wait for them, two seconds at most."""
        tasks = {task for each in self._questions if (task := each.running()) is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)

    def now(self) -> Standing:
        """The last results; upstreams, agent sessions, memory and the database are read at this moment."""
        # The registry is checked more often than counted: while it is down, an older count is not reported.
        stock = self._stock if self._components.get("registry", True) else None
        engines = self._inspect.engines()
        return Standing(
            sessions=stock.sessions if stock else None,
            windows=stock.windows if stock else None,
            tiers=self._tiers,
            components=self._components,
            upstreams={each.name: each.state is LinkState.READY for each in self._inspect.upstreams()},
            engines=engines,
            engine_sessions={name: self._sessions_of_engines.get(name, 0) for name in engines}
            if stock
            else None,
            engine_drains={name: name in self._drained for name in engines} if stock else None,
            agent_sessions=len(self._agents),
            context=MemoryUse(
                self._contents.counts.reads, self._contents.used_bytes, self._contents.limit_bytes
            ),
            database_transactions=self._database.transactions,
            database_connections=self._database.connections,
        )

    async def aclose(self) -> None:
        """Cancel the running queries."""
        for each in self._questions:
            await each.cancel()

    async def _check(self) -> None:
        health = await self._inspect.health()
        self._components = {
            each.name: each.status is not Status.UNHEALTHY
            for each in health.components
            if not each.name.startswith((ENGINE, UPSTREAM))
        }

    async def _weigh(self) -> None:
        try:
            async with asyncio.timeout(self._inspect.check_seconds):
                self._tiers = await self._inspect.kv_tier.usage()
        except (CwmError, TimeoutError):
            self._tiers = ()

    async def _count(self) -> None:
        try:
            if self._inspect.engines():
                registry = self._inspect.registry
                self._sessions_of_engines = await registry.session_counts_of_every_tenant()
                self._drained = frozenset(await registry.drained_engines())
            self._stock = await self._inspect.registry.stock_of_every_tenant()
        except CwmError:
            self._stock = None


@dataclass(slots=True)
class _Question:
    """A query that runs once at a time, and again after ``seconds`` or ``rest`` times its duration, whichever is longer."""

    ask: Callable[[], Coroutine[Any, Any, None]]
    clock: Clock
    seconds: float
    rest: float = 0.0
    _task: asyncio.Task[None] | None = None
    _due: float = -math.inf

    def running(self) -> asyncio.Task[None] | None:
        """The running query, started now if it is due; None while the last answer is still valid."""
        if self._task is None and self.clock.monotonic() >= self._due:
            self._task = asyncio.create_task(self._run())
        return self._task

    async def cancel(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def _run(self) -> None:
        started = self.clock.monotonic()
        try:
            await self.ask()
        except Exception:  # noqa: BLE001 - logged; the next look may go well
            _log.exception("a query for /metrics failed")
        finally:
            ended = self.clock.monotonic()
            self._due = ended + max(self.seconds, self.rest * (ended - started))
            self._task = None
