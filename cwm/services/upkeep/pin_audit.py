"""Pin audit: makes LMCache's pins match the registry, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cwm.domain.errors import StorageCorruptionError
from cwm.domain.intent import Intent, Operation
from cwm.domain.pins import PinRepair, pin_repairs
from cwm.domain.upkeep import Step, StepOutcome
from cwm.domain.window import Window
from cwm.ports.kv_tier import KvTier, PrefixKey
from cwm.ports.registry import Registry
from cwm.services.kv.prefix import fitting
from cwm.services.kv.release import Release
from cwm.services.replicas import Replicas


@dataclass(frozen=True, slots=True)
class _Chain:
    """The chunks of a prefix; ``key`` has no tokens if no undamaged copy of them is left."""

    owner: str
    tenant: str
    hashes: tuple[str, ...]
    chunk_size: int
    key: PrefixKey


@dataclass(frozen=True, slots=True)
class PinAudit:
    """Repairs pins from the registry: pins are counters without an owner, and the coordinator may lose them."""

    registry: Registry
    kv_tier: KvTier
    release: Release
    replicas: Replicas

    async def __call__(self, cache_salt: str, *, thorough: bool, dry_run: bool) -> list[Step]:
        """Compare the pins of one salt and repair them. Without ``thorough`` compare only the number of pinned chunks.

        Postponed while a gateway works on an intent of this salt: its pins are changing. Raises CWM-5001 if the
        coordinator is unreachable.
        """
        expected = await self.registry.pinned_chunks_of_every_tenant(cache_salt)
        if not thorough and await self.kv_tier.pinned_total(cache_salt) == len(expected):
            return []
        actual = await self.kv_tier.pins(cache_salt)
        if actual == expected:
            return []
        debts, in_motion = await self._intents(cache_salt)
        if in_motion or await self.registry.pinned_chunks_of_every_tenant(cache_salt) != expected:
            return [Step("repair_pins", "", cache_salt, StepOutcome.POSTPONED, "pins are in motion")]
        chains = [*await self._of_windows(cache_salt), *await self._of_debts(debts)]
        repairs, unowned = pin_repairs((chain.hashes for chain in chains), expected, actual)
        steps = [await self._repair(repair, chains, dry_run=dry_run) for repair in repairs]
        if unowned:
            detail = f"{len(unowned)} chunks have pins that no window explains"
            steps.append(Step("unowned_pins", "", cache_salt, StepOutcome.FAILED, detail))
        return steps

    async def _intents(self, cache_salt: str) -> tuple[list[Intent], bool]:
        """The salt's debts, and whether any operation is under way."""
        intents = [i for i in await self.registry.intents_of_every_tenant() if i.cache_salt == cache_salt]
        debts = [intent for intent in intents if intent.operation is Operation.RELEASE]
        in_motion = any(i.operation not in {Operation.RELEASE, Operation.THAW} for i in intents)
        for intent in debts:
            in_motion = in_motion or not await self.replicas.abandoned(intent)
        return debts, in_motion

    async def _of_windows(self, cache_salt: str) -> list[_Chain]:
        chains = []
        for window in await self.registry.windows_of_every_tenant(cache_salt):
            hashes = tuple(chunk.hash for chunk in await self.registry.chunks(window.tenant, window.name))
            if hashes:
                chains.append(await self._of_window(window, hashes))
        return chains

    async def _of_window(self, window: Window, hashes: tuple[str, ...]) -> _Chain:
        identity = window.identity
        try:
            snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
            token_ids = fitting(snapshot.token_ids, identity)
        except StorageCorruptionError:
            token_ids = ()
        key = PrefixKey(identity.root, identity.world_size, token_ids, window.cache_salt)
        return _Chain(window.name, window.tenant, hashes, identity.stored_chunk or 1, key)

    async def _of_debts(self, debts: list[Intent]) -> list[_Chain]:
        chains = []
        for intent in debts:
            token_ids, debt = await self.release.token_ids(intent), intent.debt
            if token_ids and debt is not None:
                key = PrefixKey(debt.root, debt.world_size, token_ids, intent.cache_salt)
                hashes = tuple(self.kv_tier.expected_hashes(key) or ())
                chains.append(_Chain(intent.window_name, intent.tenant, hashes, debt.chunk_size, key))
        return chains

    async def _repair(self, repair: PinRepair, chains: list[_Chain], *, dry_run: bool) -> Step:
        action = "pin" if repair.times > 0 else "unpin"
        chain = next((c for c in chains if repair.hash in c.hashes and c.key.token_ids), None)
        if chain is None:
            return Step(action, "", repair.hash, StepOutcome.FAILED, "its tokens are damaged")
        chunks = chain.hashes.index(repair.hash) + 1
        detail = f"{chunks} chunks, {abs(repair.times)} times"
        if dry_run:
            return Step(action, chain.tenant, chain.owner, StepOutcome.PLANNED, detail)
        key = replace(chain.key, token_ids=chain.key.token_ids[: chunks * chain.chunk_size])
        for _ in range(abs(repair.times)):
            await (self.kv_tier.pin(key) if repair.times > 0 else self.kv_tier.unpin(key))
        return Step(action, chain.tenant, chain.owner, StepOutcome.DONE, detail)
