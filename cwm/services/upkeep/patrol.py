"""Patrol: reads guaranteed windows back at intervals, and stores missing chunks again."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from cwm.domain.engine import EngineIdentity, Tier, differences
from cwm.domain.errors import CwmError, InvalidParameterError, StorageCorruptionError
from cwm.domain.prefix import TokenIds
from cwm.domain.upkeep import Step, StepOutcome
from cwm.domain.window import Durability, Window
from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.release import debt_of
from cwm.services.kv.store import all_below_l1, read_back
from cwm.services.windows.freeze import Freeze

_SET_ASIDE: Final = timedelta(hours=1)


@dataclass(slots=True)
class Patrol:
    registry: Registry
    kv_tier: KvTier
    directory: EngineDirectory
    freeze: Freeze
    clock: Clock
    _aside: dict[tuple[str, str], datetime] = field(default_factory=dict)

    async def __call__(
        self, limit: int, before: datetime, *, dry_run: bool, after_loss: bool = False
    ) -> list[Step]:
        """Check at most ``limit`` windows that were not proven since ``before``, those proven longest ago first.

        The directory may list lost chunks and miss present ones: only reading chunks back proves them. ``after_loss``: also
        store chunks again that the first tier lost and another still has: in Redis other instances reach them, and a disk
        outlives Redis. At other times chunks are only in the other tier because the first one was full.
        """
        now = self.clock.now()
        self._aside = {name: until for name, until in self._aside.items() if until > now}
        due = await self.registry.windows_to_prove_of_every_tenant(limit + len(self._aside), before)
        windows = [window for window in due if (window.tenant, window.name) not in self._aside][:limit]
        facts = await self.kv_tier.facts() if after_loss and windows else None
        first = facts.first_tier if facts is not None else None
        look = partial(self._look, first=first, after_loss=after_loss, dry_run=dry_run)
        steps = [await look(window) for window in windows]
        return [step for step in steps if step is not None]

    async def _look(
        self, window: Window, *, first: Tier | None, after_loss: bool, dry_run: bool
    ) -> Step | None:
        try:
            snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
            identity = await self._served(window)
            if (
                identity is None
                or identity.stored_chunk is None
                or any(not change.changes_tokens for change in differences(window.identity, identity))
            ):
                # Its KV belongs to another engine, which may come back; this one cannot read it.
                self._set_aside(window)
                return None
            token_ids = fitting(snapshot.token_ids, identity)
            return await self._prove(window, token_ids, first=first, after_loss=after_loss, dry_run=dry_run)
        except StorageCorruptionError as error:
            self._set_aside(window)
            return Step("store_again", window.tenant, window.name, StepOutcome.FAILED, error.message)
        except CwmError as error:
            return Step("store_again", window.tenant, window.name, StepOutcome.POSTPONED, error.message)

    async def _served(self, window: Window) -> EngineIdentity | None:
        try:
            return await self.directory.like(window.identity, window.tenant)
        except InvalidParameterError:
            return None

    def _set_aside(self, window: Window) -> None:
        """Skip the window for an hour, so that it does not delay those that can be proven now."""
        self._aside[window.tenant, window.name] = self.clock.now() + _SET_ASIDE

    async def _prove(
        self, window: Window, token_ids: TokenIds, *, first: Tier | None, after_loss: bool, dry_run: bool
    ) -> Step | None:
        prefix = Prefix(token_ids, window.cache_salt, window.identity)
        detail, elsewhere = f"its freeze failed: {window.failure}", list[Tier]()
        if window.durability is Durability.DURABLE:
            prefetched = await read_back(self.kv_tier, prefix.key)
            if prefetched.complete and first is not None:
                elsewhere = [tier for tier, n in (prefetched.loaded or {}).items() if n and tier is not first]
            if prefetched.complete and not elsewhere:
                if prefetched.in_l1 and after_loss:
                    # The directory may not know of the loss yet.
                    detail = f"{prefetched.in_l1} of {prefetched.total} blocks are being read"
                    return Step("store_again", window.tenant, window.name, StepOutcome.POSTPONED, detail)
                if prefetched.in_l1 and not all_below_l1(await self.kv_tier.lookup(prefix.key), prefix):
                    self._set_aside(window)
                    return None
                if not dry_run:
                    await self.registry.proven(window, self.clock.now())
                return None
            detail = (
                f"blocks are left in {', '.join(elsewhere)} only"
                if elsewhere
                else f"{prefetched.total - prefetched.found} of {prefetched.total} blocks are gone"
            )
        if dry_run:
            return Step("store_again", window.tenant, window.name, StepOutcome.PLANNED, detail)
        return await self._store(window, prefix, detail, take_out=bool(elsewhere))

    async def _store(self, window: Window, prefix: Prefix, detail: str, *, take_out: bool) -> Step:
        """Freeze the window again. It keeps its pin; only a window that never was durable gets a new one."""
        salt = self.directory.salt(window.tenant, window.salt_scope, prefix.identity)
        again = await self.registry.store_again(
            window,
            window.salt_scope,
            salt,
            prefix.identity,
            self.clock.now(),
            pinned=prefix.chunk_count > 0,
            debt=debt_of(prefix, pinned=window.pinned),
        )
        if again is None:
            return Step(
                "store_again", window.tenant, window.name, StepOutcome.DONE, "it was deleted meanwhile"
            )
        pending, intent, debt_intent = again
        await self.freeze.release(debt_intent)
        try:
            if take_out:
                await self._take_out(prefix)
        except CwmError:
            await self.freeze.release.leave(intent)
            raise
        result = await self.freeze.resume(intent)
        if result is None or result.durability is Durability.DURABLE:
            return Step("store_again", pending.tenant, pending.name, StepOutcome.DONE, detail)
        return Step("store_again", pending.tenant, pending.name, StepOutcome.FAILED, result.failure or detail)

    async def _take_out(self, prefix: Prefix) -> None:
        """Delete the chunks: LMCache does not store into one tier what another has. The engine keeps the KV meanwhile."""
        await self.freeze.store.engine.complete(prefix.request())
        await self.kv_tier.delete(prefix.key, self.kv_tier.expected_hashes(prefix.key) or ())
