"""Quarantine: discard KV that proved wrong, and bring its window back from its tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.canary import Canary, Evidence
from cwm.domain.errors import CwmError
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.window import Window
from cwm.ports.engine import Completion, Engine
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.audited import Journal
from cwm.services.engine_directory import EngineDirectory
from cwm.services.scopes import Scopes
from cwm.services.store import Prefix
from cwm.services.verify import Verify


@dataclass(frozen=True, slots=True)
class Recovered:
    """The context, computed from its tokens under ``salt_scope``; ``evidence`` is of the canary after that."""

    prefix: Prefix
    salt_scope: str
    answer: Completion
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Quarantine:
    """``store_again`` stores a pending window's KV in the background."""

    registry: Registry
    engine: Engine
    kv_tier: KvTier
    directory: EngineDirectory
    scopes: Scopes
    verify: Verify
    journal: Journal
    store_again: Callable[[Window, TokenIds], None]

    async def __call__(
        self, principal: Principal, window: Window, prefix: Prefix, canary: Canary, found: Evidence
    ) -> Recovered:
        """Deleting chunks does not reach what the engine itself still caches, so the salt is left for a new one."""
        salt_scope = await self.scopes.retire(window.tenant, window.salt_scope)
        deleted = await self._discard(window, prefix)
        salt = self.directory.salt(window.tenant, salt_scope, prefix.identity)
        clean = replace(prefix, cache_salt=salt)
        answer = await self.engine.complete(clean.request())
        evidence = await self.verify.replay(clean, canary)
        now = self.journal.clock.now()
        again = await self.registry.store_again(window.tenant, window.name, salt_scope, salt, now)
        if again is not None:
            self.store_again(replace(again, identity=prefix.identity), prefix.token_ids)
        self.journal.meter.event("quarantine")
        await self.journal.audit.record(
            AuditEvent(
                timestamp=now,
                tenant=principal.tenant,
                subject=principal.subject,
                event="window.quarantine",
                outcome=evidence.verification.value,
                window_name=window.name,
                severity=Severity.ERROR,
                details={
                    "blocks_deleted": deleted,
                    "first_difference": found.first_difference,
                    "deviation": found.deviation,
                },
            )
        )
        return Recovered(clean, salt_scope, answer, evidence)

    async def _discard(self, window: Window, prefix: Prefix) -> int:
        """Unpinned and deleted from every tier; what cannot be deleted now is under a salt nobody uses."""
        chunks = await self.registry.chunks(window.tenant, window.name)
        with suppress(CwmError):
            if await self.registry.set_pinned(window.tenant, window.name, pinned=False):
                await self.kv_tier.unpin(prefix.key)
            return await self.kv_tier.delete(prefix.key, [chunk.hash for chunk in chunks])
        return 0
