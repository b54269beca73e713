"""Live: tells those who look at a tenant's records that they changed, on whichever gateway.

What the gateway publishes anyway (``cwm/ports/changes.py``) is passed on at once. Turns are not published, and without a
shared store nothing of other gateways is heard: while somebody listens, the tenant's marks are read once a second.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from cwm.background import cancel_and_wait
from cwm.domain.changes import SESSIONS_URI, WINDOWS_URI, Change, ChangeKind
from cwm.domain.engine_health import EngineHealth
from cwm.domain.errors import ConcurrencyLimitError, CwmError
from cwm.domain.marks import Touch, WindowMark
from cwm.domain.operators import Operators
from cwm.domain.principal import Principal
from cwm.domain.visibility import Right, may
from cwm.ports.changes import Changes
from cwm.ports.clock import Clock
from cwm.ports.engine_records import EngineRecords
from cwm.ports.marks import MarkRecords
from cwm.services.engines.directory import EngineDirectory

MOST_LISTENERS: Final = 8
_LOOK_SECONDS: Final = 1.0
# Clocks of gateways differ, and a transaction is seen later than the time that it writes.
_LOOK_BACK: Final = timedelta(seconds=10)
_GRACE: Final = timedelta(seconds=1)
_AGAIN_SECONDS: Final = 15.0
_MOST_IDS: Final = 20


class LiveKind(StrEnum):
    CONVERSATIONS = "conversations"
    WINDOWS = "windows"
    ENGINES = "engines"
    UPSTREAMS = "upstreams"


_BY_URI: Final = {SESSIONS_URI: LiveKind.CONVERSATIONS, WINDOWS_URI: LiveKind.WINDOWS}


@dataclass(frozen=True, slots=True)
class _Engines:
    """``health``: by engine, whether it is there, and since when it is gone or back. ``drains``: since when engines are drained."""

    health: Mapping[str, tuple[bool, datetime | None]]
    drains: Mapping[str, datetime]

    def times(self) -> Iterator[datetime]:
        yield from self.drains.values()
        yield from (at for _, at in self.health.values() if at is not None)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a look at a tenant showed. ``touched``: sessions that were used or changed of late, by id."""

    touched: Mapping[str, Touch]
    windows: WindowMark
    engines: _Engines


@dataclass(eq=False, slots=True)
class Listener:
    """One who listens. ``news`` is set when there is something to take, and when it ``ended``.

    ``since``: when what it shows was read; None if that does not matter.
    """

    principal: Principal
    operators: Operators
    since: datetime | None = None
    ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _pending: dict[LiveKind, frozenset[str]] = field(default_factory=dict)
    _last_look: _Seen | None = None

    def take(self) -> dict[LiveKind, frozenset[str]]:
        """What changed since the last time, each kind with ids of what did; with none where that is not known."""
        self.news.clear()
        changes, self._pending = self._pending, {}
        return changes

    def end(self) -> None:
        self.ended = True
        self.news.set()

    def hear(self, kind: LiveKind, ids: Iterable[str] = ()) -> None:
        if kind is LiveKind.UPSTREAMS and not self.operators.have(self.principal):
            return
        old_ids, new_ids = self._pending.get(kind), frozenset(ids)
        all_known = bool(new_ids) and (old_ids is None or bool(old_ids))
        both = new_ids | (old_ids or frozenset())
        self._pending[kind] = both if all_known and len(both) <= _MOST_IDS else frozenset()
        self.news.set()

    def compare(self, now: _Seen, looked_back_to: datetime) -> None:
        """Hear of what is not as it was at the last look; at the first one, of what changed ``since``."""
        before, self._last_look = self._last_look, now
        if before is not None:
            self._hear_touched(now, lambda id_, touch: before.touched.get(id_) != touch)
            if now.windows != before.windows:
                self.hear(LiveKind.WINDOWS)
            if now.engines != before.engines:
                self.hear(LiveKind.ENGINES)
        elif self.since is not None and self.since < looked_back_to:
            for kind in LiveKind:
                self.hear(kind)
        elif (since := self.since) is not None:
            self._hear_touched(now, lambda _, touch: touch.at >= since)
            if now.windows.newest is not None and now.windows.newest >= since:
                self.hear(LiveKind.WINDOWS)
            if any(at >= since for at in now.engines.times()):
                self.hear(LiveKind.ENGINES)

    def _hear_touched(self, now: _Seen, is_new: Callable[[str, Touch], bool]) -> None:
        new = [
            session_id
            for session_id, touch in now.touched.items()
            if is_new(session_id, touch) and may(self.principal, touch.circle, Right.RECORD)
        ]
        if new:
            self.hear(LiveKind.CONVERSATIONS, new)


class Live:
    """Those who listen on this gateway."""

    def __init__(
        self,
        records: MarkRecords,
        engines: EngineRecords,
        directory: EngineDirectory,
        changes: Changes,
        clock: Clock,
        operators: Operators,
    ) -> None:
        self._records = records
        self._engine_records = engines
        self._directory = directory
        self._clock = clock
        self._operators = operators
        self._listeners: set[Listener] = set()
        self._counts: Counter[Principal] = Counter()
        self._closed = False
        self._looking: asyncio.Task[None] | None = None
        self._unsubscribe = changes.subscribe(self._on_change)

    def __len__(self) -> int:
        return len(self._listeners)

    @contextmanager
    def listening(self, principal: Principal, since: datetime | None = None) -> Iterator[Listener]:
        """Listen during the body. CWM-7002 beyond eight listeners of a principal on this gateway."""
        if self._counts[principal] >= MOST_LISTENERS:
            raise ConcurrencyLimitError(
                f"At most {MOST_LISTENERS} pages of one caller are kept up to date at once.",
                retry_after=_AGAIN_SECONDS,
                limit=MOST_LISTENERS,
            )
        since = None if since is None else since - _GRACE
        listener = Listener(principal, self._operators, since, ended=self._closed)
        self._counts[principal] += 1
        self._listeners.add(listener)
        if self._looking is None or self._looking.done():
            # In no context of the one who came first: what it logs and traces is nobody's request.
            self._looking = asyncio.create_task(self._look_on(), context=contextvars.Context())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            self._counts[principal] -= 1
            if not self._counts[principal]:
                del self._counts[principal]
            if not self._listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def close(self) -> None:
        """End every listener, and each that comes from now on."""
        self._closed = True
        self._unsubscribe()
        for listener in list(self._listeners):
            listener.end()

    async def aclose(self) -> None:
        """As ``close``, and nothing is asked any more."""
        self.close()
        if self._looking is not None:
            await cancel_and_wait(self._looking)

    async def look(self) -> None:
        """Read the marks of each tenant of which somebody listens, and tell them what changed."""
        since = self._clock.now() - _LOOK_BACK
        try:
            touches = await self._records.touched_of_every_tenant(since)
            drains = await self._engine_records.drained_engines()
            for tenant in {listener.principal.tenant for listener in self._listeners}:
                window_mark = await self._records.window_mark(tenant)
                for listener in list(self._listeners):
                    if listener.principal.tenant == tenant:
                        engines = self._engines(listener.principal, drains)
                        listener.compare(_Seen(touches.get(tenant, {}), window_mark, engines), since)
        except CwmError:
            # That the registry does not answer is told by the gateway's health; what changes meanwhile is seen after it.
            return

    async def _look_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def _engines(self, principal: Principal, drains: Mapping[str, datetime]) -> _Engines:
        """Those that the principal sees."""
        names = self._directory.names(self._operators.shown_to(principal), any_state=True)
        health = {name: self._directory.health.get(name, EngineHealth()) for name in names}
        return _Engines(
            {name: (each.is_up, each.since) for name, each in health.items()},
            {name: since for name, since in drains.items() if name in health},
        )

    def _on_change(self, change: Change) -> None:
        kind = _BY_URI.get(change.uri or "") if change.kind is ChangeKind.RESOURCE else None
        if change.kind is ChangeKind.TOOLS:
            kind = LiveKind.UPSTREAMS
        for listener in list(self._listeners):
            if kind is not None and change.concerns(listener.principal.tenant, None):
                listener.hear(kind)
