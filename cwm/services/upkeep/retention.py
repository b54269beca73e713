"""Retention: deletes expired windows, unused conversations and what refused requests left, and expires idle sessions, which may be frozen first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol, TypeVar

from cwm.domain.errors import CwmError, ErrorKind
from cwm.domain.keep import KeepPolicies
from cwm.domain.session import Session, SessionsSince
from cwm.domain.upkeep import Step, StepOutcome
from cwm.domain.visibility import visibility_of
from cwm.domain.window import Retention, Window
from cwm.ports.clock import Clock
from cwm.ports.conversations import ConversationRecords
from cwm.ports.registry import Registry
from cwm.services.sessions.end_session import EndSession
from cwm.services.turns.recording.turns import Turns
from cwm.services.windows.delete import Delete
from cwm.services.windows.freeze import Freeze

_AT_ONCE: Final = 100
_SET_ASIDE: Final = timedelta(hours=1)
_UNANSWERED: Final = timedelta(minutes=10)
"""That a session without an answer stays for a client that asks again under its id."""
_AWAY: Final = frozenset({ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT})
AUTO_FROZEN: Final = "expired_"

T = TypeVar("T", Session, Window)


class Lifetime(Protocol):
    def __call__(self, tenant: str | None, *, by_content: bool) -> float: ...


def lifetimes(lifetime: Lifetime, tenant: str | None) -> Iterator[tuple[float, bool | None]]:
    """Each that is not for ever, in seconds, and which sessions of a tenant have it: see ``SessionsSince.by_content``."""
    by_name, by_words = (lifetime(tenant, by_content=by_content) for by_content in (False, True))
    kinds = [(by_name, None)] if by_name == by_words else [(by_name, False), (by_words, True)]
    yield from ((seconds, kind) for seconds, kind in kinds if seconds)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Lifetimes in seconds; 0 means for ever. ``session_kept`` runs from a session's expiry to its deletion.

    Those of ``keep`` replace them.
    """

    session_ttl: float
    session_kept: float
    auto_freeze: bool
    keep: KeepPolicies = field(default_factory=KeepPolicies)

    def ttl_of(self, tenant: str | None, *, by_content: bool = False) -> float:
        """``session_ttl`` of a tenant (None: of those without a policy of their own), for sessions found by what was said or others."""
        own = self.keep.of(tenant)
        return _first(own.found_session_ttl if by_content else None, own.session_ttl, self.session_ttl)

    def kept_of(self, tenant: str | None, *, by_content: bool = False) -> float:
        """``session_kept``, likewise."""
        own = self.keep.of(tenant)
        return _first(own.found_session_kept if by_content else None, own.session_kept, self.session_kept)


@dataclass(slots=True)
class Retain:
    registry: Registry
    conversations: ConversationRecords
    freeze: Freeze
    delete: Delete
    end_session: EndSession
    turns: Turns
    clock: Clock
    policy: RetentionPolicy
    _aside: dict[tuple[str, ...], datetime] = field(default_factory=dict)

    async def __call__(self, *, dry_run: bool) -> list[Step]:
        """Handle at most a hundred of each kind; the next run handles the rest."""
        now = self.clock.now()
        self._aside = {key: until for key, until in self._aside.items() if until > now}
        return [
            *await self._windows(dry_run=dry_run),
            *await self._idle_sessions(dry_run=dry_run),
            *await self._expired_sessions(dry_run=dry_run),
            *await self._unanswered_sessions(dry_run=dry_run),
            *await self._unused_conversations(dry_run=dry_run),
        ]

    async def _windows(self, *, dry_run: bool) -> list[Step]:
        due = await self.registry.expired_windows_of_every_tenant(self.clock.now(), self._enough)
        return [await self._delete_window(window, dry_run=dry_run) for window in self._select(due)]

    @property
    def _enough(self) -> int:
        """How many to query so that a hundred remain without those set aside."""
        return _AT_ONCE + len(self._aside)

    def _select(self, due: list[T]) -> list[T]:
        return [each for each in due if _key(each) not in self._aside][:_AT_ONCE]

    def _postponed(self, action: str, item: Session | Window, error: CwmError) -> Step:
        """Postpone; set it aside for an hour unless a component is down, so that it does not delay the others."""
        if error.kind not in _AWAY:
            self._aside[_key(item)] = self.clock.now() + _SET_ASIDE
        return _step(action, item, StepOutcome.POSTPONED, error.message)

    async def _delete_window(self, window: Window, *, dry_run: bool) -> Step:
        detail = f"it expired at {window.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        if dry_run:
            return _step("delete_window", window, StepOutcome.PLANNED, detail)
        try:
            session = (await self.delete.now(window)).session
        except CwmError as error:
            return self._postponed("delete_window", window, error)
        if session is not None:
            detail += f"; its session {session.id} is {session.state}"
        return _step("delete_window", window, StepOutcome.DONE, detail)

    async def _idle_sessions(self, *, dry_run: bool) -> list[Step]:
        query = self.registry.idle_sessions_of_every_tenant
        return [
            step
            for session in await self._over(self.policy.ttl_of, query)
            for step in await self._expire(session, dry_run=dry_run)
        ]

    async def _over(
        self,
        lifetime: Lifetime,
        query: Callable[[SessionsSince], Awaitable[list[Session]]],
    ) -> list[Session]:
        """At most a hundred sessions for each policy that are older than their tenant's ``lifetime``."""
        own, now, over = frozenset(self.policy.keep.by_tenant), self.clock.now(), []
        for tenant in (None, *sorted(own)):
            for seconds, by_content in lifetimes(lifetime, tenant):
                since = now - timedelta(seconds=seconds)
                but = frozenset[str]() if tenant else own
                over += self._select(await query(SessionsSince(since, self._enough, tenant, but, by_content)))
        return over

    async def _expire(self, session: Session, *, dry_run: bool) -> list[Step]:
        if self.turns.in_flight(session.tenant, session.id):
            return []
        detail = f"no turn since {session.updated_at:%Y-%m-%d %H:%M:%S} UTC"
        steps = []
        if self.policy.auto_freeze and session.token_count:
            # Freezing earlier sessions may have taken long, and another gateway may have begun a turn meanwhile.
            if await self.registry.session(session.tenant, session.id) != session:
                return []
            steps.append(await self._freeze(session, dry_run=dry_run))
        if dry_run:
            return [*steps, _step("expire_session", session, StepOutcome.PLANNED, detail)]
        if steps:
            return steps
        moved_on = not await self.registry.expire_session(session, self.clock.now())
        return [] if moved_on else [_step("expire_session", session, StepOutcome.DONE, detail)]

    async def _freeze(self, session: Session, *, dry_run: bool) -> Step:
        """Freeze the session instead of expiring it; it can be continued from the window."""
        # The id of a deleted session can be used again, but windows made of the old session stay.
        name = f"{AUTO_FROZEN}{session.id}_{session.created_at:%Y%m%dT%H%M%S}_{session.revision}"
        if dry_run:
            return _step("freeze_session", session, StepOutcome.PLANNED, f"as window {name}")
        lifetime = self.policy.kept_of(session.tenant, by_content=session.by_content)
        try:
            await self.freeze(
                session.keeper,
                session.id,
                name,
                "Kept when its session was idle for too long.",
                retention=Retention.BEST_EFFORT,
                ttl_seconds=round(lifetime) if lifetime else None,
                ask=False,
                visibility=visibility_of(session.circle),
            )
        except CwmError as error:
            return self._postponed("freeze_session", session, error)
        return _step("freeze_session", session, StepOutcome.DONE, f"as window {name}")

    async def _expired_sessions(self, *, dry_run: bool) -> list[Step]:
        expired = await self._over(self.policy.kept_of, self.registry.expired_sessions_of_every_tenant)
        return [await self._delete_session(session, dry_run=dry_run) for session in expired]

    async def _unanswered_sessions(self, *, dry_run: bool) -> list[Step]:
        """Forget what refused requests opened: no list shows these sessions."""
        due = await self.registry.unanswered_sessions_of_every_tenant(
            self.clock.now() - _UNANSWERED, _AT_ONCE
        )
        return [
            _step(
                "forget_session",
                session,
                StepOutcome.PLANNED if dry_run else StepOutcome.DONE,
                "no turn was answered in it",
            )
            for session in due
            if dry_run or await self.registry.forget_unanswered(session)
        ]

    async def _unused_conversations(self, *, dry_run: bool) -> list[Step]:
        """A conversation without a session lives as long as a session in which nothing is said."""
        own, now, steps = frozenset(self.policy.keep.by_tenant), self.clock.now(), list[Step]()
        for tenant in (None, *sorted(own)):
            ttl, grace = self.policy.ttl_of(tenant), self.policy.kept_of(tenant)
            if not ttl or not grace:
                continue
            since, but = now - timedelta(seconds=ttl + grace), frozenset[str]() if tenant else own
            query = SessionsSince(since, _AT_ONCE, tenant, but)
            for unused in await self.conversations.unused_of_every_tenant(query):
                if not dry_run:
                    await self.conversations.remove(unused.tenant, unused.owner, unused.id)
                outcome = StepOutcome.PLANNED if dry_run else StepOutcome.DONE
                detail = f"unused since {unused.touched_at:%Y-%m-%d %H:%M:%S} UTC"
                steps.append(
                    Step("delete_conversation", unused.tenant, unused.id, outcome, detail, of_session=True)
                )
        return steps

    async def _delete_session(self, session: Session, *, dry_run: bool) -> Step:
        detail = f"expired at {session.updated_at:%Y-%m-%d %H:%M:%S} UTC"
        if dry_run:
            return _step("delete_session", session, StepOutcome.PLANNED, detail)
        try:
            await self.end_session.now(session)
        except CwmError as error:
            return self._postponed("delete_session", session, error)
        return _step("delete_session", session, StepOutcome.DONE, detail)


def _first(*lifetimes: float | None) -> float:
    return next(lifetime for lifetime in lifetimes if lifetime is not None)


def _step(action: str, item: Session | Window, outcome: StepOutcome, detail: str) -> Step:
    if isinstance(item, Window):
        return Step(action, item.tenant, item.name, outcome, detail)
    return Step(action, item.tenant, item.id, outcome, detail, of_session=True)


def _key(item: Session | Window) -> tuple[str, ...]:
    """The key for setting aside. A changed window gets a new key: the change may remove the reason of the failure."""
    if isinstance(item, Window):
        return "window", item.tenant, item.name, item.updated_at.isoformat()
    return "session", item.tenant, item.id
