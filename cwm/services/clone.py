"""Clone: a second name over the same tokens and the same chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cwm.domain.errors import StorageReadError, WindowNotFoundError
from cwm.domain.names import require_description, require_tags, require_window_name
from cwm.domain.principal import Principal
from cwm.domain.window import Durability, Window
from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.audited import Journal
from cwm.services.store import Prefix, fitting


@dataclass(frozen=True, slots=True)
class Clone:
    registry: Registry
    kv_tier: KvTier
    journal: Journal
    clock: Clock

    async def __call__(
        self,
        principal: Principal,
        source_window: str,
        target_window: str,
        description: str | None = None,
        tags: list[str] | None = None,
    ) -> Window:
        """A new window that shares every chunk of ``source_window``; tags are inherited where not given.

        CWM-1002, 1003, 2002, 3003; CWM-4002 (retryable) while the source is still being stored.
        """
        require_window_name(source_window)
        require_window_name(target_window)
        require_description(description or "")
        chosen = None if tags is None else tuple(require_tags(tags))
        async with self.journal.entry(principal, "window_clone", window_name=target_window) as details:
            source = await self._source(principal, source_window)
            details.update(source_window=source_window, shared_blocks=source.block_count)
            now = self.clock.now()
            clone = await self.registry.add_clone(
                replace(
                    source,
                    name=target_window,
                    owner=principal.subject,
                    description=description or "",
                    tags=source.tags if chosen is None else chosen,
                    parent_window=source.name,
                    branch_token=source.token_count,
                    created_at=now,
                    updated_at=now,
                    pinned=False,
                ),
                source.name,
            )
            await self._pin(clone)
        return clone

    async def _source(self, principal: Principal, name: str) -> Window:
        source = await self.registry.window(principal.tenant, name)
        if source is None:
            raise WindowNotFoundError(f"There is no window '{name}'.", window_name=name)
        if source.durability is Durability.PENDING:
            raise StorageReadError(
                f"Window '{name}' is still being stored; clone it when it is durable.", window_name=name
            )
        return source

    async def _pin(self, clone: Window) -> None:
        """One pin per window: LMCache counts them without knowing whose they are."""
        if clone.block_count == 0:
            return
        snapshot = await self.registry.snapshot(clone.tenant, clone.snapshot_id)
        prefix = Prefix(fitting(snapshot.token_ids, clone.identity), clone.cache_salt, clone.identity)
        await self.kv_tier.pin(prefix.key)
        await self.registry.set_pinned(clone.tenant, clone.name, pinned=True)
