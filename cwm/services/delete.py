"""Delete: a window, and exactly those of its chunks that nothing else refers to."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.domain.errors import WindowInUseError, WindowNotFoundError
from cwm.domain.names import require_window_name
from cwm.domain.prefix import TokenIds, common_length
from cwm.domain.principal import Principal
from cwm.domain.window import Chunk, Window
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.audited import Journal
from cwm.services.store import Prefix, fitting


@dataclass(frozen=True, slots=True)
class Deleted:
    window_name: str
    blocks_deleted: int
    space_freed_bytes: int


@dataclass(frozen=True, slots=True)
class Delete:
    registry: Registry
    kv_tier: KvTier
    journal: Journal

    async def __call__(
        self, principal: Principal, window_name: str, *, force: bool = False, delete_blocks: bool = True
    ) -> Deleted:
        """Remove a window and its tokens; the record goes last, so that an interrupted delete can be repeated.

        CWM-1002, CWM-2002; CWM-3004 names the windows and live sessions that depend on it, unless
        ``force``; CWM-5001 while LMCache cannot be told, and nothing is removed then.
        """
        require_window_name(window_name)
        async with self.journal.entry(principal, "window_delete", window_name=window_name) as details:
            window = await self.registry.window(principal.tenant, window_name)
            if window is None:
                raise WindowNotFoundError(f"There is no window '{window_name}'.", window_name=window_name)
            if not force:
                await self._refuse_in_use(window)
            freed = await self._release(window, delete_blocks=delete_blocks)
            await self.registry.remove_window(principal.tenant, window_name)
            details.update(blocks_deleted=len(freed), force=force)
        return Deleted(window_name, len(freed), sum(chunk.size_bytes for chunk in freed))

    async def _refuse_in_use(self, window: Window) -> None:
        dependents = await self.registry.dependents(window.tenant, window.name)
        if dependents:
            raise WindowInUseError(
                f"Window '{window.name}' is in use by {_listed(dependents.windows, 'window')}"
                f"{' and ' if dependents.windows and dependents.sessions else ''}"
                f"{_listed(dependents.sessions, 'session')}; delete it with force to do so all the same.",
                window_name=window.name,
                windows=list(dependents.windows),
                sessions=list(dependents.sessions),
            )

    async def _release(self, window: Window, *, delete_blocks: bool) -> list[Chunk]:
        chunks = await self.registry.chunks(window.tenant, window.name)
        if not chunks:
            return []
        snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
        token_ids = fitting(snapshot.token_ids, window.identity)
        prefix = Prefix(token_ids, window.cache_salt, window.identity)
        if await self.registry.set_pinned(window.tenant, window.name, pinned=False):
            await self.kv_tier.unpin(prefix.key)
        if not delete_blocks:
            return []
        unshared = await self._unshared(window, chunks, token_ids)
        if unshared:
            await self.kv_tier.delete(prefix.key, [chunk.hash for chunk in unshared])
        return unshared

    async def _unshared(self, window: Window, chunks: list[Chunk], token_ids: TokenIds) -> list[Chunk]:
        """Chunks of no other window, behind the longest prefix that a live session shares."""
        elsewhere = await self.registry.chunks_of_other_windows(window.tenant, window.name)
        kept = await self._shared_with_sessions(window, token_ids)
        return [chunk for chunk in chunks[kept:] if chunk.hash not in elsewhere]

    async def _shared_with_sessions(self, window: Window, token_ids: TokenIds) -> int:
        longest = 0
        for session_id in await self.registry.live_sessions_with_head(
            window.tenant, window.salt_scope, token_ids
        ):
            others = await self.registry.session_tokens(window.tenant, session_id)
            longest = max(longest, common_length(token_ids, others))
        return longest // (window.identity.chunk_size or 1)


def _listed(names: tuple[str, ...], noun: str) -> str:
    if not names:
        return ""
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names)}"
