"""Quarantine: discard KV whose canary did not match, and store the window again from its tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cwm.background import BackgroundTasks
from cwm.domain.audit import Severity
from cwm.domain.canary import Canary, Evidence
from cwm.domain.engine import EngineIdentity
from cwm.domain.intent import Intent
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.window import Retention, Window
from cwm.ports.engine import Completion, Engine
from cwm.ports.registry import Registry
from cwm.services.aside import outlasting
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.release import Release, debt_of
from cwm.services.kv.verify import Verify
from cwm.services.sessions.salt_scopes import SaltScopes


@dataclass(frozen=True, slots=True)
class Recovered:
    """The context computed again under ``salt_scope``. ``evidence``: the canary replayed on the new KV."""

    prefix: Prefix
    salt_scope: str
    answer: Completion
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class _Renewal:
    """The new salt scope. ``renewed`` is the window to store again; None if another gateway already changed the scope."""

    salt_scope: str
    cache_salt: str
    blocks_deleted: int
    renewed: tuple[Window, Intent] | None


@dataclass(frozen=True, slots=True)
class Quarantine:
    """``store_again`` stores a pending window's KV in the background."""

    registry: Registry
    engine: Engine
    directory: EngineDirectory
    scopes: SaltScopes
    verify: Verify
    journal: Journal
    release: Release
    store_again: Callable[[Window, Intent, TokenIds], None]
    _recovering: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def __call__(
        self, principal: Principal, window: Window, prefix: Prefix, canary: Canary, mismatch: Evidence
    ) -> Recovered:
        """Move the window to a new salt, because deleting chunks does not reach the engine's own cache.

        A caller that disconnects does not stop it.
        """
        task = self._recovering.start(self._recover(principal, window, prefix, canary, mismatch))
        return await outlasting(task)

    async def settle(self) -> None:
        """Wait for quarantines whose callers have disconnected: computing, and storing their windows again."""
        await self._recovering.settled()

    async def _recover(
        self, principal: Principal, window: Window, prefix: Prefix, canary: Canary, mismatch: Evidence
    ) -> Recovered:
        intent = await self.registry.begin_quarantine(window, self.journal.clock.now())
        try:
            renewal = await self._renew(window, prefix.token_ids, prefix.identity)
        except BaseException:
            await self.release.leave(intent)
            raise
        clean = replace(prefix, cache_salt=renewal.cache_salt)
        try:
            answer = await self.engine.complete(clean.request())
            evidence = await self.verify.replay(clean, canary)
        finally:
            if renewal.renewed is not None:
                self.store_again(*renewal.renewed, prefix.token_ids)
        self.journal.meter.event("quarantine")
        details = {
            "blocks_deleted": renewal.blocks_deleted,
            "first_difference": mismatch.first_difference,
            "deviation": mismatch.deviation,
        }
        outcome = evidence.verification.value
        await self.journal.note(
            principal, "window.quarantine", outcome, details, Severity.ERROR, window_name=window.name
        )
        return Recovered(clean, renewal.salt_scope, answer, evidence)

    async def resume(self, intent: Intent) -> None:
        """Finish a quarantine whose gateway has died. Raises while the engine is away."""
        window = await self.registry.window(intent.tenant, intent.window_name)
        if window is None or window.cache_salt != intent.cache_salt:
            await self.registry.end_intent(intent.tenant, intent.id)
            return
        identity = await self.directory.like(window.identity, window.tenant)
        snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
        token_ids = fitting(snapshot.token_ids, identity)
        renewal = await self._renew(window, token_ids, identity)
        if renewal.renewed is not None:
            self.store_again(*renewal.renewed, token_ids)

    async def _renew(self, window: Window, token_ids: TokenIds, identity: EngineIdentity) -> _Renewal:
        """Retire the old salt, and remove its pins and its chunks from every tier."""
        salt_scope = await self.scopes.retire(window.tenant, window.salt_scope)
        salt = self.directory.salt(window.tenant, salt_scope, identity)
        hashes = tuple(chunk.hash for chunk in await self.registry.chunks(window.tenant, window.name))
        old_prefix = Prefix(fitting(token_ids, window.identity), window.cache_salt, window.identity)
        renewed = await self.registry.store_again(
            window,
            salt_scope,
            salt,
            identity,
            self.journal.clock.now(),
            pinned=window.retention is Retention.GUARANTEED and identity.stored_chunk is not None,
            debt=debt_of(old_prefix, pinned=window.pinned, hashes=hashes),
        )
        if renewed is None:
            return _Renewal(salt_scope, salt, 0, None)
        pending, intent, debt = renewed
        released = await self.release(debt)
        return _Renewal(salt_scope, salt, len(hashes) if released else 0, (pending, intent))
