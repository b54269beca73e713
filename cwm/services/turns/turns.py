"""Turns: counts the turns in flight of each session in this process, and records what a turn adds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.errors import SessionNotActiveError
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry

_Key: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class _Lock:
    """A session's lock. ``users``: how many tasks hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass(frozen=True, slots=True)
class Turns:
    """``touch_after``: a turn of a session that was idle for longer updates its time stamp at once; None: never."""

    registry: Registry
    audit: AuditLog
    clock: Clock
    touch_after: timedelta | None = None
    _running: Counter[_Key] = field(default_factory=Counter)
    _locks: dict[_Key, _Lock] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Whether no session has a turn, running or waiting."""
        return not self._running and not self._locks

    def in_flight(self, tenant: str, session_id: str) -> bool:
        return self._running[tenant, session_id] > 0

    @contextmanager
    def begin(self, principal: Principal, session_id: str) -> Iterator[Turn]:
        """A turn with a complete prompt. Several may run at once; the one that ends last is the session's context."""
        with self._counted((principal.tenant, session_id)):
            yield Turn(self, principal, session_id)

    @asynccontextmanager
    async def exclusive(self, principal: Principal, session_id: str) -> AsyncIterator[Turn]:
        """A turn that continues the recorded context. Only one runs at a time in a session."""
        key = (principal.tenant, session_id)
        session_lock = self._locks.setdefault(key, _Lock())
        session_lock.users += 1
        try:
            async with session_lock.lock:
                with self._counted(key):
                    yield Turn(self, principal, session_id)
        finally:
            session_lock.users -= 1
            if not session_lock.users:
                del self._locks[key]

    @contextmanager
    def _counted(self, key: _Key) -> Iterator[None]:
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]


@dataclass(slots=True)
class Turn:
    """A turn in flight. While it runs its session cannot be frozen."""

    _turns: Turns
    _principal: Principal
    _session_id: str
    _created_at: datetime | None = None

    async def continues(self, session: Session) -> None:
        """Start the turn in ``session`` and mark the session as used. CWM-3002 if it is not live."""
        session.require_live("a turn")
        self._created_at = session.created_at
        turns = self._turns
        now = turns.clock.now()
        if turns.touch_after is None or now - session.updated_at < turns.touch_after:
            return
        if not await turns.registry.touch_session(session, now):
            raise SessionNotActiveError(
                f"Session '{session.id}' moved on or is no longer active; look at it and take the turn again.",
                session_id=session.id,
            )

    async def record(
        self,
        token_ids: Sequence[int],
        metadata: Mapping[str, Any] | None = None,
        *,
        revision: int | None = None,
    ) -> Session | None:
        """Make ``token_ids`` the session's context.

        Returns None and writes an audit event if the session was frozen or ended meanwhile, if another session has
        its id now, or if it is no longer at ``revision``. CWM-4001.
        """
        turns, principal = self._turns, self._principal
        now = turns.clock.now()
        session = await turns.registry.record_turn(
            principal.tenant, self._session_id, token_ids, now, metadata, revision, self._created_at
        )
        if session is None:
            await self.lost("session moved on or no longer live", len(token_ids))
        return session

    async def lost(self, reason: str, token_count: int) -> None:
        """Audit a turn that ran but is not part of the session's context."""
        await self._turns.audit.record(
            AuditEvent(
                timestamp=self._turns.clock.now(),
                tenant=self._principal.tenant,
                subject=self._principal.subject,
                event="session.turn",
                outcome="not_recorded",
                session_id=self._session_id,
                severity=Severity.WARNING,
                details={"reason": reason, "token_count": token_count},
            )
        )
