"""Freeze: store a session's context under a name, so that it outlives the session, the engine and the machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.engine import EngineIdentity, Tier, differences
from cwm.domain.errors import (
    CwmError,
    ErrorKind,
    SessionNotActiveError,
)
from cwm.domain.intent import Debt, Intent
from cwm.domain.names import require_description, require_session_id, require_tags, require_window_name
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import TENANT, Principal
from cwm.domain.session import Session
from cwm.domain.turn import Turn
from cwm.domain.visibility import Right, circle_of_new
from cwm.domain.window import Durability, Retention, Window
from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.access.sight import session_of
from cwm.services.aside import outlasting
from cwm.services.audit.journal import Journal, of_another
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.release import Release, debt_of
from cwm.services.kv.store import Store
from cwm.services.kv.verify import Recording, Verify
from cwm.services.replicas import Replicas
from cwm.services.turns.reading.current import Current

_ENGINE_AWAY: Final = frozenset({ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT})


@dataclass(frozen=True, slots=True)
class Frozen:
    """The result of a freeze. ``freeze_time_ms`` ends with the proof, or without ``wait`` with the acknowledgement."""

    window: Window
    freeze_time_ms: int


@dataclass(slots=True)
class Freeze:
    """``quota_bytes``: the most that a tenant's guaranteed windows may take; None for no limit. ``visibility``: the default of windows."""

    registry: Registry
    kv_tier: KvTier
    directory: EngineDirectory
    store: Store
    current: Current
    journal: Journal
    clock: Clock
    verify: Verify
    release: Release
    replicas: Replicas
    quota_bytes: int | None = None
    visibility: str = TENANT
    _storing: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def __call__(
        self,
        principal: Principal,
        session_id: str,
        window_name: str,
        description: str = "",
        tags: list[str] | None = None,
        *,
        wait: bool = True,
        canary: bool = True,
        retention: Retention = Retention.GUARANTEED,
        ttl_seconds: int | None = None,
        turn_id: str | None = None,
        keep_session: bool = False,
        automatic: bool = False,
        ask: bool = True,
        visibility: str | None = None,
    ) -> Frozen:
        """Store the session's context as a window. The session takes no more turns; an expired one stays expired.

        With ``turn_id`` the context is that of an earlier turn or of a branch; then, and with ``keep_session``, the
        session goes on as it is.
        With ``wait`` the call returns when the window is proven durable. Without it the window is ``pending``, and
        ``window_status`` says when it is durable. With ``canary`` a look at the KV is recorded, by which a thaw
        verifies it. An ``automatic`` window has the blocks that are listed: nothing is read back, and L1 keeps what it has.
        Others than the session's owner make no window that is more visible than the session. With nobody to ``ask``, the later one of two conversations in one session is taken.
        CWM-1001/1002/1003, 2001, 2007, 3002, 3003; CWM-4001 and CWM-4003 leave the session unchanged.
        """
        started = self.clock.monotonic()
        require_session_id(session_id)
        require_window_name(window_name)
        require_description(description)
        tags = require_tags(tags or [])
        async with self.journal.entry(
            principal, "window_freeze", session_id=session_id, window_name=window_name
        ) as details:
            keep_session = keep_session or turn_id is not None
            session, turn = await self._freezable(principal, session_id, turn_id, ask=ask)
            circle = circle_of_new(principal, visibility, self.visibility, session, copy=False)
            token_ids = await self.registry.turn_tokens(turn)
            details.update(of_another(principal, session.owner))
            identity = await self._engine(session, turn)
            window = self._intent(principal, session, token_ids, identity, window_name)
            window = replace(
                window,
                turn_id=turn.id,
                description=description,
                tags=tuple(tags),
                retention=retention,
                expires_at=expiry(window.created_at, ttl_seconds),
                pinned=retention is Retention.GUARANTEED and _prefix(window, token_ids).chunk_count > 0,
                automatic=automatic,
                circle=circle,
            )
            # A caller that disconnects neither stops the freeze nor aborts its request to the engine.
            frozen = None if keep_session else session
            task = self._storing.start(self._begin(window, token_ids, frozen, wait=wait, canary=canary))
            window = await outlasting(task)
            details.update(token_count=window.token_count, blocks=window.block_count, wait=wait)
            details.update(turn=turn.id, keep_session=keep_session)
        elapsed_ms = round((self.clock.monotonic() - started) * 1000)
        return Frozen(window, elapsed_ms)

    async def resume(self, intent: Intent) -> Window | None:
        """Finish a freeze whose gateway has died; None when there is nothing to do.

        Raises while the engine is away. Any other failure to store marks the window failed.
        """
        window = await self.registry.window(intent.tenant, intent.window_name)
        if window is None or window.durability is not Durability.PENDING:
            await self.registry.end_intent(intent.tenant, intent.id)
            return window
        snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
        pending = await self._for_this_engine(window, intent, snapshot.token_ids)
        if pending is None:
            return None
        await outlasting(self._storing.start(self._finish_or_leave(*pending, snapshot.token_ids)))
        return await self.registry.window(window.tenant, window.name)

    def store_again(
        self, window: Window, intent: Intent, token_ids: TokenIds, proven_tokens: int = 0
    ) -> None:
        """Store the KV of a window that became pending again, in the background; ``proven_tokens`` of it were kept and are proven."""
        self._storing.start(self._finish_or_hand_over(window, intent, token_ids, proven_tokens=proven_tokens))

    async def settle(self) -> None:
        """Wait for freezes that are still storing although their callers were answered or disconnected."""
        await self._storing.settled()

    async def _for_this_engine(
        self, window: Window, intent: Intent, token_ids: TokenIds
    ) -> tuple[Window, Intent] | None:
        """The window as the current engine can store it: under that engine's salt. None if another gateway changed it."""
        identity = await self.directory.like(window.identity, window.tenant)
        reuses = identity.stored_chunk is not None
        if not differences(window.identity, identity) and reuses == (
            window.identity.stored_chunk is not None
        ):
            return window, intent
        salt = self.directory.salt(window.tenant, window.salt_scope, identity)
        pending = await self.registry.store_again(
            window,
            window.salt_scope,
            salt,
            identity,
            self.clock.now(),
            pinned=window.pinned and reuses,
            debt=_pin_of(window, token_ids),
        )
        if pending is None:
            return None
        await self.release.leave(pending[2])
        return pending[0], pending[1]

    async def _engine(self, session: Session, turn: Turn) -> EngineIdentity:
        """CWM-5001 if LMCache is configured but does not answer: that is not the same as having none."""
        identity = await self.directory.of(session, turn.cache_salt)
        if identity.chunk_size is None and await self.kv_tier.beside(identity.engine).facts() is not None:
            return await self.directory.of(session, turn.cache_salt)
        return identity

    async def _freezable(
        self, principal: Principal, session_id: str, turn_id: str | None, *, ask: bool
    ) -> tuple[Session, Turn]:
        session = await session_of(self.registry, principal, session_id, Right.USE)
        if turn_id is not None:
            return session, await self.current.ended(session, turn_id)
        session.require_freezable()
        turn = await self.current(session, ask=ask)
        if turn is None:
            raise SessionNotActiveError(
                f"Session '{session_id}' has no tokens yet: there is nothing to freeze.",
                session_id=session_id,
                token_count=0,
            )
        # A turn may have ended meanwhile.
        return await self.registry.session(principal.tenant, session_id) or session, turn

    def _intent(
        self,
        principal: Principal,
        session: Session,
        token_ids: TokenIds,
        identity: EngineIdentity,
        name: str,
    ) -> Window:
        now = self.clock.now()
        return Window(
            tenant=principal.tenant,
            name=name,
            session_id=session.id,
            owner=principal.subject,
            snapshot_id="",
            model=session.model,
            token_count=len(token_ids),
            block_count=0,
            total_size_bytes=0,
            storage_tier=Tier.DISK,
            durability=Durability.PENDING,
            salt_scope=session.salt_scope,
            cache_salt=self.directory.salt(principal.tenant, session.salt_scope, identity),
            identity=identity,
            created_at=now,
            updated_at=now,
            parent_window=session.thawed_from,
            branch_token=session.branch_token,
        )

    async def _begin(
        self, window: Window, token_ids: TokenIds, session: Session | None, *, wait: bool, canary: bool
    ) -> Window:
        """Write the intent and act on it, in one task that a disconnecting caller cannot interrupt.

        ``session``: the one to freeze, if any.
        """
        revision, created_at = (session.revision, session.created_at) if session else (None, None)
        intent = await self.registry.begin_freeze(window, token_ids, revision, created_at)
        window = replace(window, snapshot_id=intent.snapshot_id or "")
        if wait:
            try:
                return await self._finish_or_undo(window, token_ids, session, canary=canary)
            except BaseException:
                self.replicas.let_go(intent)
                raise
        self._storing.start(self._finish_or_hand_over(window, intent, token_ids, canary=canary))
        return window

    async def _finish_or_undo(
        self, window: Window, token_ids: TokenIds, session: Session | None, *, canary: bool
    ) -> Window:
        try:
            return await self._finish(window, token_ids, canary=canary)
        except BaseException:
            state = session.state if session else None
            debt = await self.registry.undo_freeze(window, state, _pin_of(window, token_ids))
            await self.release.leave(debt)
            raise

    async def _finish(
        self, window: Window, token_ids: TokenIds, *, canary: bool = True, proven_tokens: int = 0
    ) -> Window:
        """Pin first, because LMCache may evict between any two steps."""
        prefix = _prefix(window, token_ids)
        if window.automatic:
            chunks = await self.store.listed(prefix)
            return await self.registry.finish_freeze(window, chunks, self.clock.now())
        if window.pinned:
            await self.kv_tier.pin(prefix.key)
        first = partial(self._record, window, prefix, proven_tokens) if canary else None
        stored, recording = await self.store(prefix, first)
        window_canary = recording.canary if recording else None
        return await self.registry.finish_freeze(
            window, stored, self.clock.now(), window_canary, self.quota_bytes
        )

    async def _record(self, window: Window, prefix: Prefix, proven_tokens: int) -> Recording:
        session = await self.registry.session(window.tenant, window.session_id, any_state=True)
        if session is not None and session.salt_scope == window.salt_scope:
            proven_tokens = max(proven_tokens, session.proven_of(prefix.token_ids))
        known = await self.registry.canary(window.tenant, window.snapshot_id, window.cache_salt)
        return await self.verify.record(prefix, proven_tokens, known)

    async def _finish_or_hand_over(
        self,
        window: Window,
        intent: Intent,
        token_ids: TokenIds,
        *,
        canary: bool = True,
        proven_tokens: int = 0,
    ) -> None:
        with suppress(CwmError):
            await self._finish_or_leave(window, intent, token_ids, canary=canary, proven_tokens=proven_tokens)

    async def _finish_or_leave(
        self,
        window: Window,
        intent: Intent,
        token_ids: TokenIds,
        *,
        canary: bool = True,
        proven_tokens: int = 0,
    ) -> None:
        """On an error give up the intent, so that the next reconciliation, on any gateway, can go on with it."""
        try:
            await self._finish_or_fail(window, token_ids, canary=canary, proven_tokens=proven_tokens)
        except CwmError:
            await self.release.leave(intent)
            raise

    async def _finish_or_fail(
        self, window: Window, token_ids: TokenIds, *, canary: bool, proven_tokens: int
    ) -> None:
        """While the engine is away raise and leave the window pending, to be stored later."""
        try:
            await self._finish(window, token_ids, canary=canary, proven_tokens=proven_tokens)
        except CwmError as error:
            if error.kind in _ENGINE_AWAY:
                raise
            debt = await self.registry.fail_freeze(
                window, error.published, self.clock.now(), _pin_of(window, token_ids)
            )
            await self.release.leave(debt)


def expiry(created_at: datetime, ttl_seconds: int | None) -> datetime | None:
    return None if ttl_seconds is None else created_at + timedelta(seconds=ttl_seconds)


def _prefix(window: Window, token_ids: TokenIds) -> Prefix:
    return Prefix(fitting(token_ids, window.identity), window.cache_salt, window.identity)


def _pin_of(window: Window, token_ids: TokenIds) -> Debt:
    return debt_of(_prefix(window, token_ids), pinned=window.pinned)
