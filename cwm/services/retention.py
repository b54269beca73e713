"""Retention: what has had its time ends, and what is worth it is kept as a window first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.upkeep import Outcome, Step
from cwm.domain.window import Retention, Window
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.delete import Delete
from cwm.services.end_session import EndSession
from cwm.services.freeze import Freeze

_AT_ONCE: Final = 100
AUTO_FROZEN: Final = "expired_"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Seconds; 0 is for ever. ``session_kept`` runs from a session's expiry to its deletion."""

    session_ttl: float
    session_kept: float
    auto_freeze: bool


@dataclass(frozen=True, slots=True)
class Retain:
    registry: Registry
    freeze: Freeze
    delete: Delete
    end_session: EndSession
    clock: Clock
    policy: RetentionPolicy

    async def __call__(self, *, dry_run: bool) -> list[Step]:
        """At most a hundred of each kind in one go; the rest has its turn in the next one."""
        return [
            *await self._windows(dry_run=dry_run),
            *await self._idle_sessions(dry_run=dry_run),
            *await self._expired_sessions(dry_run=dry_run),
        ]

    async def _windows(self, *, dry_run: bool) -> list[Step]:
        due = await self.registry.expired_windows_of_every_tenant(self.clock.now(), _AT_ONCE)
        return [await self._delete_window(window, dry_run=dry_run) for window in due]

    async def _delete_window(self, window: Window, *, dry_run: bool) -> Step:
        told = f"its time was over at {window.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        if dry_run:
            return Step("delete_window", window.tenant, window.name, Outcome.PLANNED, told)
        try:
            await self.delete.now(window)
        except CwmError as error:
            return Step("delete_window", window.tenant, window.name, Outcome.POSTPONED, error.message)
        return Step("delete_window", window.tenant, window.name, Outcome.DONE, told)

    async def _idle_sessions(self, *, dry_run: bool) -> list[Step]:
        if not self.policy.session_ttl:
            return []
        since = self.clock.now() - timedelta(seconds=self.policy.session_ttl)
        idle = await self.registry.idle_sessions_of_every_tenant(since, _AT_ONCE)
        return [step for session in idle for step in await self._expire(session, dry_run=dry_run)]

    async def _expire(self, session: Session, *, dry_run: bool) -> list[Step]:
        told = f"no turn since {session.updated_at:%Y-%m-%d %H:%M:%S} UTC"
        steps = []
        if self.policy.auto_freeze and session.token_count:
            steps.append(await self._freeze(session, dry_run=dry_run))
        if dry_run:
            return [*steps, Step("expire_session", session.tenant, session.id, Outcome.PLANNED, told)]
        if steps:
            return steps
        moved_on = not await self.registry.expire_session(
            session.tenant, session.id, session.revision, self.clock.now()
        )
        return [] if moved_on else [Step("expire_session", session.tenant, session.id, Outcome.DONE, told)]

    async def _freeze(self, session: Session, *, dry_run: bool) -> Step:
        """The window is the session's rest: it goes on from there, and the session is frozen instead of expired."""
        name = f"{AUTO_FROZEN}{session.id[:40]}_{session.revision}"
        if dry_run:
            return Step("freeze_session", session.tenant, session.id, Outcome.PLANNED, f"as window {name}")
        kept = self.policy.session_kept
        try:
            await self.freeze(
                Principal(session.tenant, session.owner),
                session.id,
                name,
                "Kept when its session was idle for too long.",
                retention=Retention.BEST_EFFORT,
                ttl_seconds=round(kept) if kept else None,
            )
        except CwmError as error:
            return Step("freeze_session", session.tenant, session.id, Outcome.POSTPONED, error.message)
        return Step("freeze_session", session.tenant, session.id, Outcome.DONE, f"as window {name}")

    async def _expired_sessions(self, *, dry_run: bool) -> list[Step]:
        if not self.policy.session_kept:
            return []
        since = self.clock.now() - timedelta(seconds=self.policy.session_kept)
        over = await self.registry.expired_sessions_of_every_tenant(since, _AT_ONCE)
        return [await self._delete_session(session, dry_run=dry_run) for session in over]

    async def _delete_session(self, session: Session, *, dry_run: bool) -> Step:
        told = f"expired at {session.updated_at:%Y-%m-%d %H:%M:%S} UTC"
        if dry_run:
            return Step("delete_session", session.tenant, session.id, Outcome.PLANNED, told)
        try:
            await self.end_session.now(session)
        except CwmError as error:
            return Step("delete_session", session.tenant, session.id, Outcome.POSTPONED, error.message)
        return Step("delete_session", session.tenant, session.id, Outcome.DONE, told)
