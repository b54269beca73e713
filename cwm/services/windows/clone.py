"""Clone: a second name for the same tokens and chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cwm.domain.errors import StorageReadError
from cwm.domain.intent import Intent
from cwm.domain.names import require_description, require_tags, require_window_name
from cwm.domain.principal import TENANT, Principal
from cwm.domain.visibility import Right, circle_of_new
from cwm.domain.window import Durability, Retention, Window
from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.access.sight import window_of
from cwm.services.aside import to_its_end
from cwm.services.audit.journal import Journal, of_another
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.release import Release, debt_of
from cwm.services.replicas import Replicas
from cwm.services.windows.freeze import expiry


@dataclass(frozen=True, slots=True)
class Clone:
    registry: Registry
    kv_tier: KvTier
    journal: Journal
    clock: Clock
    release: Release
    replicas: Replicas
    quota_bytes: int | None = None
    visibility: str = TENANT

    async def __call__(
        self,
        principal: Principal,
        source_window: str,
        target_window: str,
        description: str | None = None,
        tags: list[str] | None = None,
        *,
        retention: Retention | None = None,
        ttl_seconds: int | None = None,
        visibility: str | None = None,
    ) -> Window:
        """A new window that shares every chunk of ``source_window``; tags and retention are inherited.

        It is by default not more visible than its source.

        CWM-1002, 1003, 2002, 3003, 4003, 5001; CWM-4002 (retryable) while the source is still being stored.
        """
        require_window_name(source_window)
        require_window_name(target_window)
        require_description(description or "")
        new_tags = None if tags is None else tuple(require_tags(tags))
        async with self.journal.entry(principal, "window_clone", window_name=target_window) as details:
            source = await self._source(principal, source_window)
            circle = circle_of_new(principal, visibility, self.visibility, source)
            details.update(source_window=source_window, shared_blocks=source.block_count)
            details.update(of_another(principal, source.owner))
            now = self.clock.now()
            clone_retention = retention or source.retention
            clone = replace(
                source,
                name=target_window,
                owner=principal.subject,
                description=description or "",
                tags=source.tags if new_tags is None else new_tags,
                parent_window=source.name,
                branch_token=source.token_count,
                created_at=now,
                updated_at=now,
                retention=clone_retention,
                expires_at=expiry(now, ttl_seconds),
                pinned=clone_retention is Retention.GUARANTEED and source.block_count > 0,
                automatic=False,
                circle=circle,
            )
            return await to_its_end(self._add(clone, source))

    async def _source(self, principal: Principal, name: str) -> Window:
        source = await window_of(self.registry, principal, name, Right.CONTENTS)
        if source.durability is Durability.PENDING:
            raise StorageReadError(
                f"Window '{name}' is still being stored; clone it when it is durable.", window_name=name
            )
        return source

    async def _add(self, clone: Window, source: Window) -> Window:
        clone, intent = await self.registry.add_clone(clone, source.name, self.quota_bytes)
        try:
            await self._pin_or_undo(clone, intent)
        except BaseException:
            self.replicas.let_go(intent)
            raise
        return clone

    async def _pin_or_undo(self, clone: Window, intent: Intent) -> None:
        """Pin once for each window: LMCache counts pins and does not know their owners."""
        if not clone.pinned:
            await self.registry.end_intent(intent.tenant, intent.id)
            return
        snapshot = await self.registry.snapshot(clone.tenant, clone.snapshot_id)
        prefix = Prefix(fitting(snapshot.token_ids, clone.identity), clone.cache_salt, clone.identity)
        try:
            await self.kv_tier.pin(prefix.key)
        except BaseException:
            debt = await self.registry.remove_window(clone, self.clock.now(), debt_of(prefix, pinned=True))
            await self.release.leave(debt)
            raise
        await self.registry.end_intent(intent.tenant, intent.id)
