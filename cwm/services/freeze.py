"""Freeze: give a session's context a name that outlives the session, the engine and the machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.errors import CwmError, SessionNotActiveError, SessionNotFoundError, StorageWriteError
from cwm.domain.names import require_description, require_session_id, require_tags, require_window_name
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.window import Durability, Window
from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.audited import Journal
from cwm.services.engine_directory import EngineDirectory
from cwm.services.store import Prefix, Store, fitting
from cwm.services.turns import Turns
from cwm.services.verify import Verify, canary_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Frozen:
    """``freeze_time_ms`` is measured from the request to the proof, or to the acknowledgement without ``wait``."""

    window: Window
    freeze_time_ms: int
    warning: str | None = None


@dataclass(slots=True)
class Freeze:
    registry: Registry
    kv_tier: KvTier
    directory: EngineDirectory
    store: Store
    turns: Turns
    journal: Journal
    clock: Clock
    verify: Verify
    _storing: set[asyncio.Task[Any]] = field(default_factory=set)

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
    ) -> Frozen:
        """Store the session's context as a window and end its turns.

        With ``wait`` the answer is proof; without, the window is ``pending`` and ``window_status`` tells
        when it is durable. With ``canary`` a short continuation is kept that a thaw is verified by.
        CWM-1001/1002/1003, 2001, 3002, 3003; CWM-4001 leaves the session as it was.
        """
        started = self.clock.monotonic()
        require_session_id(session_id)
        require_window_name(window_name)
        require_description(description)
        tags = require_tags(tags or [])
        async with self.journal.entry(
            principal, "window_freeze", session_id=session_id, window_name=window_name
        ) as details:
            session, token_ids = await self._freezable(principal, session_id)
            identity = await self.directory.identity(session.model)
            window = self._intent(principal, session, token_ids, identity, window_name)
            window = replace(window, description=description, tags=tuple(tags))
            begun = self._run(self._begin(window, token_ids, session, wait=wait, canary=canary))
            window = await asyncio.shield(begun)
            details.update(token_count=window.token_count, blocks=window.block_count, wait=wait)
        elapsed_ms = round((self.clock.monotonic() - started) * 1000)
        return Frozen(window, elapsed_ms, _warning(window, identity))

    async def resume(self, *, others_may_store: bool) -> int:
        """Go on with freezes that a stopped gateway left pending; how many there were.

        Where other gateways share the registry, one that is still at it gets its whole time first.
        """
        pending = await self.registry.pending_windows_of_every_tenant()
        for window in pending:
            self._run(self._resume(window, others_may_store=others_may_store))
        return len(pending)

    def store_again(self, window: Window, token_ids: TokenIds) -> None:
        """Store the KV of a window that was made pending again, in the background."""
        self._run(self._finish_or_fail(window, token_ids))

    async def settle(self) -> None:
        """Wait for freezes whose callers have left or were answered, and are still being stored."""
        await asyncio.gather(*self._storing, return_exceptions=True)

    async def _resume(self, window: Window, *, others_may_store: bool) -> None:
        if others_may_store:
            age = (self.clock.now() - window.created_at).total_seconds()
            await asyncio.sleep(max(0.0, 2 * self.store.timeout_seconds - age))
        current = await self.registry.window(window.tenant, window.name)
        if current is not None and current.durability is Durability.PENDING:
            snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
            await self._finish_or_fail(current, snapshot.token_ids)

    async def _freezable(self, principal: Principal, session_id: str) -> tuple[Session, TokenIds]:
        session = await self.registry.session(principal.tenant, session_id)
        if session is None:
            raise SessionNotFoundError(f"There is no session '{session_id}'.", session_id=session_id)
        session.require_live("a freeze")
        if self.turns.in_flight(principal.tenant, session_id):
            raise SessionNotActiveError(
                f"Session '{session_id}' has a turn in flight; freeze it when the turn has ended.",
                session_id=session_id,
                in_flight=True,
            )
        token_ids = await self.registry.session_tokens(principal.tenant, session_id)
        if not token_ids:
            raise SessionNotActiveError(
                f"Session '{session_id}' has no tokens yet: there is nothing to freeze.",
                session_id=session_id,
                token_count=0,
            )
        return session, token_ids

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
            snapshot_id=digest(token_ids),
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
        self, window: Window, token_ids: TokenIds, session: Session, *, wait: bool, canary: bool
    ) -> Window:
        """The intent and what follows from it: no caller who leaves comes between them."""
        await self.registry.begin_freeze(window, token_ids, session.revision)
        if wait:
            return await self._finish_or_undo(window, token_ids, session, canary=canary)
        self._run(self._finish_or_fail(window, token_ids, canary=canary))
        return window

    async def _finish_or_undo(
        self, window: Window, token_ids: TokenIds, session: Session, *, canary: bool
    ) -> Window:
        try:
            return await self._finish(window, token_ids, canary=canary)
        except BaseException:
            await self.registry.undo_freeze(window.tenant, window.name, session.state)
            raise

    async def _finish(self, window: Window, token_ids: TokenIds, *, canary: bool = True) -> Window:
        """Pin first: quota sweeps run between any two steps."""
        prefix = Prefix(fitting(token_ids, window.identity), window.cache_salt, window.identity)
        if prefix.chunk_count == 0:
            stored, _ = await self.store(prefix)
            return await self.registry.finish_freeze(window.tenant, window.name, stored, self.clock.now())
        try:
            await self.kv_tier.pin(prefix.key)
        except CwmError as error:
            raise StorageWriteError(
                f"LMCache's coordinator could not pin the blocks: {error.message}", **error.context
            ) from error
        try:
            song = self.verify.request(prefix) if canary else None
            stored, sung = await self.store(prefix, song)
            if not await self.registry.set_pinned(window.tenant, window.name, pinned=True):
                # Another replica went on with the same intent and holds the pins already.
                await self.kv_tier.unpin(prefix.key)
            return await self.registry.finish_freeze(
                window.tenant,
                window.name,
                stored,
                self.clock.now(),
                canary_of(sung) if song and sung else None,
            )
        except BaseException:
            with contextlib.suppress(CwmError):
                await self.kv_tier.unpin(prefix.key)
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of its own: a caller who leaves neither stops a freeze nor aborts its request."""
        task = asyncio.create_task(work)
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)
        return task

    async def _finish_or_fail(self, window: Window, token_ids: TokenIds, *, canary: bool = True) -> None:
        try:
            await self._finish(window, token_ids, canary=canary)
        except CwmError as error:
            await self.registry.fail_freeze(window.tenant, window.name, error.message, self.clock.now())


def _warning(window: Window, identity: EngineIdentity) -> str | None:
    if identity.chunk_size is None:
        return "This engine has no LMCache: the tokens are kept, a thaw computes their KV again."
    if window.durability is Durability.DURABLE and window.block_count == 0:
        return (
            f"The context is shorter than one block of {identity.chunk_size} tokens: "
            "the tokens are kept, a thaw computes their KV again."
        )
    return None
