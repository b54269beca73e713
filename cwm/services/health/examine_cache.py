"""Tests whether vLLM, LMCache and the coordinator agree on chunks, and whether stored chunks can be loaded again.

Each computes hashes on its own and none compares them: if they disagree, nothing is ever found.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from cwm.domain.engine import Tier
from cwm.domain.errors import CwmError
from cwm.domain.prefix import TokenIds, full_chunks
from cwm.ports.clock import Clock
from cwm.ports.engine import Engine, Generation, ServedModel
from cwm.ports.kv_tier import AttachedModel, KvTier, KvTierFacts, Placement, PrefixKey
from cwm.services.health.examine_engine import PROBE_SALT, probe_ids
from cwm.services.health.findings import Findings

CACHE_CHECKS: Final = (
    "attached",
    "block size",
    "coordinator",
    "directory",
    "round trip",
    "decode cache",
    "cpu tier",
)
# LMCache reports new chunks to the directory once per flush interval, by default a second.
_PATIENCE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.05
_WINDOWS_IN_L1: Final = 4
_BELOW_L1: Final = frozenset({Tier.REDIS, Tier.DISK})


@dataclass(slots=True)
class CacheExamination:
    findings: Findings
    engine: Engine
    kv_tier: KvTier
    clock: Clock
    served: ServedModel
    sent: list[tuple[TokenIds, str]] = field(default_factory=list)
    world_size: int = 1

    async def examine(self, probe: TokenIds) -> None:
        """Run the checks with ``probe``, which vLLM has just computed under PROBE_SALT."""
        try:
            await self._examine(probe)
        except CwmError as error:
            checks_done = {finding.name for finding in self.findings.made}
            first, *rest = [name for name in CACHE_CHECKS if name not in checks_done]
            self.findings.fault(first, error.message, "See the logs of LMCache's server and coordinator.")
            self.findings.skipped(f"{first} failed", *rest)

    async def _examine(self, probe: TokenIds) -> None:
        facts = await self.kv_tier.facts()
        attached = self._attached(facts) if facts else None
        if facts is None or attached is None:
            self.findings.skipped("no vLLM is attached", *CACHE_CHECKS[1:])
            return
        self.world_size = attached.world_size
        self._block_size(facts, attached)
        await self._coordinator(facts)
        prefix = self._key(probe, PROBE_SALT)
        placements = await self._directory(facts, prefix)
        await self._round_trip(prefix, placements)
        await self._decode_cache(facts)
        await self._cpu_tier(facts, placements)

    def _attached(self, facts: KvTierFacts) -> AttachedModel | None:
        attached = next((model for model in facts.attached if model.root == self.served.root), None)
        if attached:
            self.findings.ok("attached", f"vLLM with {attached.root}, world size {attached.world_size}")
            return attached
        others = ", ".join(model.root for model in facts.attached)
        self.findings.fault(
            "attached",
            f"LMCache knows no vLLM that serves {self.served.root}"
            + (f", only {others}." if others else "."),
            "Start vLLM with --kv-transfer-config that names CWM's connector, and lmcache.mp.host and lmcache.mp.port of this LMCache; "
            "`cwm engine command` prints it.",
        )
        return None

    def _block_size(self, facts: KvTierFacts, attached: AttachedModel) -> None:
        if attached.block_size == facts.chunk_size:
            self.findings.ok("block size", f"vLLM's block and LMCache's chunk have {facts.chunk_size} tokens")
        else:
            self.findings.fault(
                "block size",
                f"vLLM's block has {attached.block_size} tokens, LMCache's chunk {facts.chunk_size}: "
                "a thawed continuation may differ from the uninterrupted one.",
                f"Start vLLM with --block-size {facts.chunk_size}, or LMCache with --chunk-size {attached.block_size}.",
            )

    async def _coordinator(self, facts: KvTierFacts) -> None:
        chunk = await self.kv_tier.coordinator_chunk_size()
        if chunk == facts.chunk_size:
            self.findings.ok("coordinator", f"its chunk has {chunk} tokens too")
        elif chunk is None:
            self.findings.warn(
                "coordinator",
                "It does not report its chunk size.",
                "Make sure that its --chunk-size is LMCache's.",
            )
        else:
            self.findings.fault(
                "coordinator",
                f"Its chunk has {chunk} tokens, LMCache's {facts.chunk_size}: it finds, pins and deletes nothing.",
                f"Start the coordinator with --chunk-size {facts.chunk_size}.",
            )

    async def _directory(self, facts: KvTierFacts, prefix: PrefixKey) -> list[Placement]:
        placements = await self._stored_placements(prefix)
        if self.findings.has_fault("coordinator"):
            self.findings.skipped("the coordinator has another chunk size", "directory")
        elif self.kv_tier.expected_hashes(prefix) is None:
            self.findings.warn(
                "directory",
                f"CWM does not compute {facts.hash_algorithm}: it cannot check the coordinator's hashes.",
                "Start LMCache and its coordinator with --hash-algorithm blake3.",
            )
        elif placements and all(placement.tiers for placement in placements):
            self.findings.ok("directory", "it knows the hashes of what was stored a moment ago")
        else:
            self.findings.fault(
                "directory",
                "The coordinator does not know the chunks that were stored a moment ago.",
                "Give the coordinator LMCache's --hash-algorithm, LMCache --coordinator-event-reporting.",
            )
        return placements

    async def _round_trip(self, prefix: PrefixKey, placements: list[Placement]) -> None:
        name = "round trip"
        if self.findings.has_fault("coordinator") or self.findings.has_fault("instances"):
            self.findings.skipped("L1 cannot be dropped", name)
            return
        if self.findings.has_fault("adapters"):
            self.findings.skipped("there is no lower tier", name)
            return
        await self.kv_tier.drop_l1(prefix)
        prefetched = await self.kv_tier.prefetch(prefix)
        if prefetched.complete and prefetched.total:
            tiers = sorted({str(tier) for placement in placements for tier in placement.tiers & _BELOW_L1})
            self.findings.ok(
                name,
                f"{prefetched.found} of {prefetched.total} blocks came back from {' and '.join(tiers) or 'below'}",
            )
        else:
            self.findings.fault(
                name,
                f"{prefetched.found} of {prefetched.total} blocks came back after L1 was dropped: freezes will fail.",
                "See LMCache's log: can its adapters write (Redis reachable, not full; folder writable)?",
            )

    async def _decode_cache(self, facts: KvTierFacts) -> None:
        """Generate tokens that fill the second chunk: if it is found, it was stored while decoding."""
        name = "decode cache"
        chunk = facts.chunk_size
        if self.served.max_model_len < 2 * chunk + 4:
            self.findings.skipped("the model's context is too short", name)
            return
        probe = await probe_ids(self.engine, self.served, 2 * chunk - 4)
        sampling = {"temperature": 0, "ignore_eos": True}
        answer = await self.engine.complete(Generation(self.served.id, probe, PROBE_SALT, 8, sampling))
        token_ids = probe + answer.token_ids
        self.sent.append((token_ids, PROBE_SALT))
        if await self._is_found(self._key(token_ids[: 2 * chunk], PROBE_SALT), count=2):
            self.findings.ok(name, "blocks filled by generation are stored too")
        else:
            self.findings.warn(
                name,
                "Blocks filled by generation are not stored until a freeze computes them again.",
                'Set "lmcache.mp.save_decode_cache": true in vLLM\'s --kv-transfer-config.',
            )

    async def _cpu_tier(self, facts: KvTierFacts, placements: list[Placement]) -> None:
        chunk_bytes = max((placement.size_bytes for placement in placements), default=0)
        capacity = next((u.capacity_bytes for u in await self.kv_tier.usage() if u.tier is Tier.CPU), None)
        if not chunk_bytes or not capacity:
            self.findings.skipped("LMCache does not report the sizes", "cpu tier")
            return
        largest = full_chunks(self.served.max_model_len, facts.chunk_size) * chunk_bytes
        message = f"L1 holds {capacity / largest:.1f} of the largest possible windows ({largest / 2**20:.0f} MiB each)"
        if capacity >= _WINDOWS_IN_L1 * largest:
            self.findings.ok("cpu tier", message)
        else:
            gigabytes = _WINDOWS_IN_L1 * largest / 2**30
            self.findings.warn(
                "cpu tier",
                f"{message}: stores are dropped silently when it is full.",
                f"Start LMCache's server with --l1-size-gb {gigabytes:.1f} or more (CWM_CPU_CACHE_GB for `cwm up`).",
            )

    async def _stored_placements(self, prefix: PrefixKey) -> list[Placement]:
        """The directory's placements once every chunk is below L1, after 5 s at the latest."""
        deadline = self.clock.monotonic() + _PATIENCE_SECONDS
        while True:
            placements = await self.kv_tier.lookup(prefix)
            is_stored = bool(placements) and all(placement.tiers & _BELOW_L1 for placement in placements)
            if is_stored or self.clock.monotonic() > deadline:
                return placements
            await asyncio.sleep(_POLL_SECONDS)

    async def _is_found(self, prefix: PrefixKey, count: int) -> bool:
        deadline = self.clock.monotonic() + _PATIENCE_SECONDS
        while self.clock.monotonic() < deadline:
            if (await self.kv_tier.prefetch(prefix)).found >= count:
                return True
            await asyncio.sleep(_POLL_SECONDS)
        return False

    def _key(self, token_ids: TokenIds, salt: str) -> PrefixKey:
        return PrefixKey(self.served.root, self.world_size, token_ids, salt)

    async def clean_up(self, sent: list[tuple[TokenIds, str]]) -> None:
        """Delete the chunks that probes may have stored."""
        if self.findings.has_fault("instances"):
            self.findings.skipped("no instance is known that could delete the probe's chunks", "clean-up")
            return
        try:
            for token_ids, salt in dict.fromkeys([*sent, *self.sent]):
                prefix = self._key(token_ids, salt)
                hashes = self.kv_tier.expected_hashes(prefix) or [
                    p.hash for p in await self.kv_tier.lookup(prefix)
                ]
                await self.kv_tier.delete(prefix, hashes)
        except CwmError as error:
            self.findings.warn(
                "clean-up",
                f"The probe's chunks could not be deleted: {error.message}",
                "They are a few chunks under the salt cwm1-doctor; they may stay.",
            )
