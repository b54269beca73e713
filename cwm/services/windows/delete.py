"""Delete: remove a window and exactly those of its chunks that nothing else refers to."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from cwm.domain.errors import (
    StorageCorruptionError,
    StorageKeyError,
    StorageReadError,
    WindowInUseError,
)
from cwm.domain.intent import Debt, Operation
from cwm.domain.names import require_window_name
from cwm.domain.prefix import TokenIds, common_length
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.visibility import Right, has_everywhere, may
from cwm.domain.window import Chunk, Window
from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.access.sight import window_of
from cwm.services.aside import outlasting
from cwm.services.audit.journal import Journal, of_another
from cwm.services.kv.neighbours import neighbours
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.release import Release, debt_of
from cwm.services.replicas import Replicas

_STORING: Final = frozenset({Operation.FREEZE, Operation.CLONE, Operation.QUARANTINE})
_LATER: Final = "LMCache stopped answering: what the window had there goes when it is back."


@dataclass(frozen=True, slots=True)
class Deleted:
    """``session`` is the one that was frozen, as the window leaves it.

    None when it was deleted before, cannot be read, or is not the caller's to see.
    """

    window_name: str
    blocks_deleted: int
    space_freed_bytes: int
    session: Session | None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    registry: Registry
    kv_tier: KvTier
    journal: Journal
    clock: Clock
    release: Release
    replicas: Replicas

    async def __call__(
        self, principal: Principal, window_name: str, *, force: bool = False, delete_blocks: bool = True
    ) -> Deleted:
        """Remove a window and its tokens at once, then its chunks in the cache. Its session stays.

        CWM-1002, CWM-2002. Without ``force`` CWM-3004 names the windows and live sessions that depend on it.
        CWM-4002 (retryable) while it is being stored, or if it changed meanwhile. CWM-5001 if LMCache does not
        answer; nothing is removed then.
        """
        require_window_name(window_name)
        async with self.journal.entry(principal, "window_delete", window_name=window_name) as details:
            window = await window_of(self.registry, principal, window_name, Right.DELETE)
            details.update(of_another(principal, window.owner))
            if not force:
                await self._refuse_in_use(principal, window)
            await self._refuse_while_storing(window)
            deleted = await outlasting(asyncio.create_task(self.now(window, delete_blocks=delete_blocks)))
            details.update(blocks_deleted=deleted.blocks_deleted, force=force)
            if deleted.session is not None:
                details.update(session_id=deleted.session.id, session_state=deleted.session.state.value)
        if deleted.session is not None and not may(principal, deleted.session.circle, Right.RECORD):
            return replace(deleted, session=None)
        return deleted

    async def now(self, window: Window, *, delete_blocks: bool = True) -> Deleted:
        """Remove the window even if others depend on it. Chunks that they share stay."""
        chunks = await self.registry.chunks(window.tenant, window.name)
        if chunks or window.pinned:
            await self.kv_tier.facts()
        token_ids = await self._token_ids(window)
        unshared = await self._unshared(window, chunks, token_ids) if delete_blocks else []
        debt = _debt(window, token_ids, unshared)
        intent = await self.registry.remove_window(window, self.clock.now(), debt)
        released = await self.release(intent)
        freed_bytes = sum(chunk.size_bytes for chunk in unshared)
        session = None
        # The window is gone, whether or not what is left can be read.
        with suppress(StorageReadError):
            session = await self.registry.session(window.tenant, window.session_id)
        return Deleted(window.name, len(unshared), freed_bytes, session, None if released else _LATER)

    async def unshared(self, window: Window) -> list[Chunk]:
        """Its chunks that nothing else refers to now."""
        chunks = await self.registry.chunks(window.tenant, window.name)
        return await self._unshared(window, chunks, await self._token_ids(window))

    async def debt(self, window: Window) -> Debt:
        """What the window has in the cache and no live session needs; what other windows refer to when it is paid stays."""
        chunks = await self.registry.chunks(window.tenant, window.name)
        token_ids = await self._token_ids(window)
        shared_chunks = await self._shared_with_sessions(window, token_ids) if chunks else 0
        return _debt(window, token_ids, chunks[shared_chunks:])

    async def _refuse_in_use(self, principal: Principal, window: Window) -> None:
        circles = None if has_everywhere(principal, Right.RECORD) else principal.circles
        dependents = await self.registry.dependents(window.tenant, window.name, circles)
        if dependents:
            users = (
                _listed(dependents.windows, "window"),
                _listed(dependents.sessions, "session"),
                f"{dependents.others} of others" if dependents.others else "",
            )
            raise WindowInUseError(
                f"Window '{window.name}' is in use by {' and '.join(filter(None, users))}; "
                "delete it with force to do so all the same.",
                window_name=window.name,
                windows=list(dependents.windows),
                sessions=list(dependents.sessions),
            )

    async def _refuse_while_storing(self, window: Window) -> None:
        for intent in await self.registry.intents(window.tenant, window.name):
            if intent.operation in _STORING and not await self.replicas.abandoned(intent):
                raise StorageReadError(
                    f"Window '{window.name}' is still being stored; delete it when it is durable.",
                    window_name=window.name,
                )

    async def _token_ids(self, window: Window) -> TokenIds:
        """The window's token ids; none if they cannot be read. Its pins then stay, and no chunk is compared with sessions."""
        try:
            snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
        except (StorageCorruptionError, StorageKeyError):
            return ()
        return fitting(snapshot.token_ids, window.identity)

    async def _unshared(self, window: Window, chunks: list[Chunk], token_ids: TokenIds) -> list[Chunk]:
        """The chunks that no other window has, after the longest prefix that a live session shares."""
        other_hashes = await self.registry.chunks_of_other_windows(window.tenant, window.name)
        if all(chunk.hash in other_hashes for chunk in chunks):
            return []
        shared_chunks = await self._shared_with_sessions(window, token_ids)
        return [chunk for chunk in chunks[shared_chunks:] if chunk.hash not in other_hashes]

    async def _shared_with_sessions(self, window: Window, token_ids: TokenIds) -> int:
        longest = 0
        async for _, other_ids in neighbours(self.registry, window.tenant, window.salt_scope, token_ids):
            longest = max(longest, common_length(token_ids, other_ids))
            if longest == len(token_ids):
                break
        return longest // (window.identity.stored_chunk or 1)


def _debt(window: Window, token_ids: TokenIds, unshared: list[Chunk]) -> Debt:
    prefix = Prefix(token_ids, window.cache_salt, window.identity)
    return debt_of(prefix, pinned=window.pinned, hashes=tuple(chunk.hash for chunk in unshared))


def _listed(names: tuple[str, ...], noun: str) -> str:
    if not names:
        return ""
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names)}"
