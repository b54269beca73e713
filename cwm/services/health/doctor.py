"""``cwm doctor``: checks the configuration of every part of an installation, then tests it with probes.

Nothing is changed: probes have salts of their own and random content, and the chunks they store are deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cwm.domain.engine_rules import EngineRules
from cwm.domain.errors import CwmError
from cwm.ports.clock import Clock
from cwm.ports.engine import Engine, ServedModel
from cwm.ports.kv_tier import KvTier, KvTierFacts, SharedTierRoom
from cwm.ports.registry import Registry
from cwm.services.health.examine_cache import CACHE_CHECKS, CacheExamination
from cwm.services.health.examine_engine import ENGINE_CHECKS, EngineExamination
from cwm.services.health.examine_engines import examine_engines
from cwm.services.health.findings import Finding, Findings
from cwm.services.health.inspect import WITHOUT_COORDINATOR

_GOOD_POLICY: Final = "noeviction"
_REDIS_CHECKS: Final = ("eviction", "memory")
_NEARLY_FULL: Final = 0.8
_CLOCKS_APART: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Examined:
    """The findings; ``vllm_version`` and ``lmcache_version`` are None if unreachable."""

    findings: tuple[Finding, ...]
    vllm_version: str | None
    lmcache_version: str | None


@dataclass(frozen=True, slots=True)
class Doctor:
    """Examines the registry, vLLM, LMCache and Redis.

    ``schema`` returns whether CWM can use the registry's schema, and a message. ``store_time`` returns None if the
    registry has no clock of its own. ``shared_tier_room`` asks the shared tier; None if its URL is not configured.
    ``weights_digest`` is what the settings say of the weights, ``rules`` what they say of several engines; None if they list none.
    """

    registry: Registry
    engine: Engine
    kv_tier: KvTier
    clock: Clock
    schema: Callable[[], Awaitable[tuple[bool, str]]]
    store_time: Callable[[], Awaitable[datetime | None]]
    shared_tier_room: Callable[[], Awaitable[SharedTierRoom]] | None = None
    weights_digest: str = ""
    rules: Mapping[str, EngineRules] | None = None

    async def __call__(self) -> Examined:
        """Examine everything; parts that others depend on come first. An unreachable part is a finding, never an error."""
        findings = Findings()
        await self._registry(findings)
        version, model = await self._vllm(findings)
        facts = await self._lmcache(findings)
        await self._redis(findings)
        if self.rules is not None:
            await examine_engines(findings, self.engine, self.kv_tier, self.rules)
        if model is None:
            findings.skipped("vLLM does not serve a model", *ENGINE_CHECKS)
            if facts is not None:
                findings.skipped("vLLM does not serve a model", *CACHE_CHECKS)
        else:
            await self._probe(findings, model, facts)
        return Examined(tuple(findings.made), version, facts.version if facts else None)

    async def _probe(self, findings: Findings, model: ServedModel, facts: KvTierFacts | None) -> None:
        cache = CacheExamination(findings, self.engine, self.kv_tier, self.clock, model) if facts else None
        chunk = facts.chunk_size if facts else 16
        weights = self.weights_digest if facts else None
        engine = EngineExamination(findings, self.engine, model, chunk, weights)
        try:
            probe = await engine.examine()
            if cache is None:
                return
            if probe is None:
                findings.skipped("vLLM does not complete a probe", *CACHE_CHECKS)
            elif engine.no_reuse:
                _no_reuse(findings, engine.no_reuse)
            else:
                await cache.examine(probe)
        finally:
            if cache is not None:
                await cache.clean_up(engine.sent)

    async def _registry(self, findings: Findings) -> None:
        try:
            await self.registry.ping()
            usable, message = await self.schema()
            before, store, after = self.clock.now(), await self.store_time(), self.clock.now()
        except CwmError as error:
            findings.fault("registry", error.message, "Check CWM_DATABASE_URL or CWM_DB_PATH.")
            return
        if usable:
            findings.ok("registry", message)
        else:
            findings.fault("registry", message, "cwm migrate")
        if store is not None:
            _clocks(findings, max(before - store, store - after))

    async def _vllm(self, findings: Findings) -> tuple[str | None, ServedModel | None]:
        try:
            await self.engine.health()
            version = await self.engine.version()
            models = await self.engine.models()
        except CwmError as error:
            findings.fault(
                "vllm",
                error.message,
                "Start vLLM, or set CWM_VLLM_URL to where it runs; `cwm up` starts one, `cwm engine command` prints how.",
            )
            return None, None
        if not models:
            findings.fault("vllm", "vLLM serves no model.", "Start vLLM with --model.")
            return version, None
        findings.ok("vllm", f"{version}, serves {', '.join(model.id for model in models)}")
        return version, models[0]

    async def _lmcache(self, findings: Findings) -> KvTierFacts | None:
        try:
            facts = await self.kv_tier.facts()
        except CwmError as error:
            if await self._lacks_only_its_coordinator():
                findings.ok("lmcache", "its server answers, its coordinator does not")
                findings.fault(
                    "coordinator",
                    f"{error.message} {WITHOUT_COORDINATOR}",
                    "Start LMCache's coordinator again; `cwm engine command` prints how.",
                )
                others = [check for check in CACHE_CHECKS if check != "coordinator"]
                findings.skipped("the coordinator does not answer", *others)
                return None
            findings.fault(
                "lmcache",
                error.message,
                "Start LMCache's server and coordinator (`cwm engine command` prints how), or set CWM_LMCACHE_URL and CWM_COORDINATOR_URL.",
            )
            findings.skipped("LMCache does not answer", *CACHE_CHECKS)
            return None
        if facts is None:
            findings.warn(
                "lmcache",
                "This engine is configured without LMCache: windows keep their tokens, a thaw computes all KV again.",
                "Set CWM_LMCACHE_URL and CWM_COORDINATOR_URL.",
            )
            return None
        findings.ok(
            "lmcache", f"{facts.version}, chunks of {facts.chunk_size} tokens, {facts.hash_algorithm}"
        )
        _instances(findings, facts)
        _adapters(findings, facts)
        _serde(findings, facts)
        return facts

    async def _lacks_only_its_coordinator(self) -> bool:
        with suppress(CwmError):
            await self.kv_tier.storing()
            return True
        return False

    async def _redis(self, findings: Findings) -> None:
        if self.shared_tier_room is None:
            findings.skipped("CWM_REDIS_URL is not set here", *_REDIS_CHECKS)
            return
        try:
            room = await self.shared_tier_room()
        except CwmError as error:
            fix = "Start the Redis of CWM_REDIS_URL, or correct the URL."
            findings.fault(_REDIS_CHECKS[0], error.message, fix)
            findings.skipped("Redis does not answer", *_REDIS_CHECKS[1:])
            return
        _eviction(findings, room)
        _memory(findings, room)


def _no_reuse(findings: Findings, reason: str) -> None:
    findings.warn(
        "attached",
        f"{reason} Windows keep their tokens, a thaw computes all KV again.",
        "Serve a model for which vLLM has its prefix cache on this device (its log says why it is off), without "
        "--no-enable-prefix-caching, and with a --block-size that divides LMCache's --chunk-size.",
    )
    findings.skipped("no KV is reused", *(check for check in CACHE_CHECKS if check != "attached"))


def _clocks(findings: Findings, difference: timedelta) -> None:
    if difference > _CLOCKS_APART:
        findings.warn(
            "clocks",
            f"This machine's clock and the registry's are {difference.total_seconds():.0f} s apart: "
            "gateways differ on when windows, sessions and results expire.",
            "Keep the clocks of all machines by NTP.",
        )
    else:
        findings.ok("clocks", "this machine's clock and the registry's agree")


def _eviction(findings: Findings, room: SharedTierRoom) -> None:
    if room.policy == _GOOD_POLICY:
        findings.ok("eviction", "Redis evicts nothing (noeviction)")
    elif room.policy is None:
        findings.warn(
            "eviction",
            "Redis does not report its eviction policy.",
            "Make sure maxmemory-policy is noeviction.",
        )
    else:
        findings.fault(
            "eviction",
            f"Redis evicts ({room.policy}): frozen windows vanish when it is full, and nothing notices.",
            "CONFIG SET maxmemory-policy noeviction",
        )


def _memory(findings: Findings, room: SharedTierRoom) -> None:
    """Every request stores chunks in Redis, and only `cwm up` removes those that no window needs."""
    used = f"{room.used_bytes / 2**30:.1f} GiB"
    if room.max_bytes is None:
        findings.warn(
            "memory",
            f"Redis has no memory limit: {used} are used, and every request adds to it.",
            "CONFIG SET maxmemory to what the machine can spare.",
        )
    elif room.used_bytes < _NEARLY_FULL * room.max_bytes:
        findings.ok("memory", f"{used} of {room.max_bytes / 2**30:.1f} GiB are used")
    else:
        findings.warn(
            "memory",
            f"Redis is nearly full: {used} of {room.max_bytes / 2**30:.1f} GiB; a freeze fails once it is.",
            "Delete windows or raise maxmemory. `cwm up` makes room by itself in the Valkey it starts.",
        )


def _instances(findings: Findings, facts: KvTierFacts) -> None:
    if facts.instances:
        findings.ok("instances", f"registered with the coordinator: {', '.join(facts.instances)}")
    else:
        findings.fault(
            "instances",
            "No LMCache server is registered with the coordinator: chunks cannot be dropped or deleted.",
            "Start LMCache's server with --coordinator-url of this coordinator.",
        )


def _adapters(findings: Findings, facts: KvTierFacts) -> None:
    adapters = ", ".join(facts.adapters)
    if not facts.adapters:
        findings.fault(
            "adapters",
            "LMCache has no tier below memory: frozen windows are lost with its process.",
            'Give LMCache\'s server --l2-adapter \'{"type":"valkey",…}\'.',
        )
    elif "resp" in facts.adapters:
        findings.warn(
            "adapters",
            f"LMCache uses {adapters}; 'resp' never reconnects, and one short value ends it for every key.",
            'Use "type":"valkey" in --l2-adapter; it speaks to Redis as well.',
        )
    elif "valkey" not in facts.adapters:
        findings.warn(
            "adapters",
            f"LMCache uses {adapters}: without a shared tier windows stay on their node.",
            'Add --l2-adapter \'{"type":"valkey",…}\' to thaw on any replica.',
        )
    else:
        findings.ok("adapters", adapters)


def _serde(findings: Findings, facts: KvTierFacts) -> None:
    if facts.bare_adapters is None:
        findings.skipped("LMCache does not report its adapters' serde", "serde")
    elif facts.bare_adapters:
        findings.fault(
            "serde",
            f"Stored chunks are not authenticated ({', '.join(facts.bare_adapters)}): damaged bytes would be loaded.",
            'Add "serde":{"type":"cwm-seal","keyring_path":…} to every --l2-adapter of LMCache, and start it with `python -m cwm_engine.serve_lmcache`.',
        )
    else:
        findings.ok("serde", "stored chunks are encrypted and authenticated")
