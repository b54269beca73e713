"""Watchdog: stores a small prefix below every LMCache and loads it again at intervals.

The health endpoints of vLLM, LMCache and its coordinator stay green even if nothing can be loaded from the lower
tiers, or if these have lost everything. Only a prefetch shows it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.errors import CwmError, EngineTimeoutError
from cwm.ports.clock import Clock
from cwm.ports.engine import Completion, Engine
from cwm.ports.kv_tier import KvTier, KvTierFacts, PrefixKey
from cwm.ports.meter import Meter
from cwm.services.aside import outlasting
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.prefix import Prefix, fitting

_TENANT: Final = "cwm:watchdog"  # no tenant can have this name
# The instance's mark comes first, so that even the shortest chunk contains it.
_TEXT: Final = "{mark} is the canary of LMCache {instance}. "
# With several chunks a tier could lose some of them, which would then be stored there and nowhere else.
_CHUNKS: Final = 1
_STORED_WITHIN_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_MOST_PAUSE_SECONDS: Final = 0.5
_CONFIRMED_BY: Final = 3
_STORED_AT_MOST: Final = 2
_MARK_CHARS: Final = 12


class WatchdogOutcome(StrEnum):
    """The result of the check of one instance.

    ``stored``: the prefix did not exist yet and was stored. ``lost``: it existed, was gone, and could be stored again.
    ``without_redis``, ``without_disk``: it can be loaded, but not from the first tier. ``broken``: it cannot be loaded.
    ``hung``: LMCache answers, but does not finish loading it. ``not_looked``: it could not be checked.
    """

    FOUND = "found"
    STORED = "stored"
    LOST = "lost"
    WITHOUT_REDIS = "without_redis"
    WITHOUT_DISK = "without_disk"
    BROKEN = "broken"
    HUNG = "hung"
    NOT_LOOKED = "not_looked"


_FAULTS: Final = {
    WatchdogOutcome.WITHOUT_REDIS: (
        "What LMCache '{instance}' stores comes back from its disk only: its link to Redis is broken, or Redis is "
        "full. Nothing is lost yet, but what is frozen now does not reach other instances."
    ),
    WatchdogOutcome.WITHOUT_DISK: (
        "What LMCache '{instance}' stores comes back from its Redis only: its disk is full or cannot be used. "
        "Nothing is lost yet, but what is frozen now is, once that Redis stops."
    ),
    WatchdogOutcome.BROKEN: (
        "What LMCache '{instance}' stores does not come back from its lower tiers, although every part answers: "
        "freezes fail, and thaws compute again. Look at its Redis and its disk."
    ),
    WatchdogOutcome.HUNG: (
        "LMCache '{instance}' answers, but does not finish loading what it stored: thaws compute again, and requests "
        "may hang. Restart it."
    ),
}
_WITHOUT: Final = {Tier.REDIS: WatchdogOutcome.WITHOUT_REDIS, Tier.DISK: WatchdogOutcome.WITHOUT_DISK}
_ELSEWHERE: Final = frozenset(_WITHOUT.values())
_MISSED: Final = _ELSEWHERE | {WatchdogOutcome.BROKEN}
_GOOD: Final = frozenset({WatchdogOutcome.FOUND, WatchdogOutcome.STORED, WatchdogOutcome.LOST})


@dataclass(slots=True)
class Watchdog:
    """Checks every LMCache. ``on_loss`` is called if the prefix vanished from working tiers, as other chunks are lost too.

    Gateways with the same secret share the stored prefixes, so that restarts leave none behind. One gateway may drop
    what another is about to load; therefore a miss counts only if further checks, at random times, miss too.
    """

    engine: Engine
    kv_tier: KvTier
    directory: EngineDirectory
    meter: Meter
    clock: Clock
    on_loss: Callable[[], None] | None = None
    most_pause_seconds: float = _MOST_PAUSE_SECONDS
    _last: dict[str, WatchdogOutcome] = field(default_factory=dict)
    _canaries: dict[str, Prefix] = field(default_factory=dict)
    _last_keys: dict[str, PrefixKey] = field(default_factory=dict)
    _flushing: BackgroundTasks = field(default_factory=BackgroundTasks)

    def fault(self) -> str | None:
        """The faults of the last checks, one or two sentences for each instance; None if there are none."""
        faults = [_FAULTS[o].format(instance=i) for i, o in sorted(self._last.items()) if o in _FAULTS]
        return " ".join(faults) or None

    async def watch(self, interval_seconds: float) -> None:
        """Check at about this interval until cancelled; an interval of 0 means never."""
        while interval_seconds:
            try:
                await self.look()
            except Exception:
                logging.getLogger(__name__).exception("the watchdog could not look")
            # A random interval, so that gateways started together do not check at the same time.
            await asyncio.sleep(interval_seconds * random.uniform(0.8, 1.2))  # noqa: S311

    async def settle(self) -> None:
        """Wait for a flush that was under way when :meth:`watch` was cancelled."""
        await self._flushing.settled()

    async def look(self) -> None:
        """Check every LMCache once: every registered instance, by the engines' names where several are listed.

        Unreachable ones are not checked: health reports them as down.
        """
        try:
            engines = await self._engines()
        except CwmError:
            self.meter.watched(WatchdogOutcome.NOT_LOOKED)
            return
        outcomes = await asyncio.gather(*(self._outcome(*each) for each in engines.items()))
        self._conclude(dict(zip(engines, outcomes, strict=True)))

    async def _engines(self) -> dict[str, str]:
        """The engine that stores, by the instance that it stores in; an empty name for the only one."""
        if self.directory.is_one:
            facts = await self.kv_tier.facts()
            return dict.fromkeys(facts.instances if facts else (), "")
        # Behind a router it is not known which engine stores.
        return {name: name for name in self.directory.engine.names() if not self.directory.is_router(name)}

    def _conclude(self, outcomes: dict[str, WatchdogOutcome]) -> None:
        for outcome in outcomes.values():
            self.meter.watched(outcome)
        latest = {i: self._last.get(i) if o is WatchdogOutcome.NOT_LOOKED else o for i, o in outcomes.items()}
        self._last = {i: o for i, o in latest.items() if o is not None}
        self.meter.instances({i: o not in _FAULTS for i, o in self._last.items()})
        if self.on_loss is not None and WatchdogOutcome.LOST in outcomes.values():
            self.on_loss()

    async def _outcome(self, instance: str, engine: str) -> WatchdogOutcome:
        try:
            cache = self.kv_tier.beside(engine) if engine else await self.kv_tier.on(instance)
            # Ask LMCache first: reading an unknown engine's identity makes it compute a probe.
            facts = await cache.facts()
            if facts is None or not _watchable(
                facts, identity := await self.directory.identity(engine=engine)
            ):
                return WatchdogOutcome.NOT_LOOKED
            canary = await self._canary(instance, identity)
            look = partial(self._load_surely, cache, canary, facts, self._last.get(instance))
            first = await look()
            if first not in _MISSED:
                outcome = first
            else:
                second = await self._store_until_found(cache, canary, first, look)
                outcome = _judge(first, second, existed=self._last_keys.get(instance) == canary.key)
        except CwmError:
            return WatchdogOutcome.NOT_LOOKED
        if outcome in _GOOD:
            self._last_keys[instance] = canary.key
        return outcome

    async def _load_surely(
        self, cache: KvTier, canary: Prefix, facts: KvTierFacts, last: WatchdogOutcome | None
    ) -> WatchdogOutcome:
        outcome = await self._load(cache, canary, facts)
        for _ in range(_CONFIRMED_BY):
            if outcome in {WatchdogOutcome.FOUND, last}:
                break
            await asyncio.sleep(random.uniform(0, self.most_pause_seconds))  # noqa: S311
            outcome = await self._load(cache, canary, facts)
        return outcome

    async def _load(self, cache: KvTier, canary: Prefix, facts: KvTierFacts) -> WatchdogOutcome:
        """Load the prefix from below L1. NOT_LOOKED if L1 had it in spite of the drop."""
        await cache.drop_l1(canary.key)
        try:
            prefetched = await cache.prefetch(canary.key)
        except EngineTimeoutError:
            return WatchdogOutcome.HUNG
        if not prefetched.complete or prefetched.total < canary.chunk_count:
            return WatchdogOutcome.BROKEN
        if prefetched.loaded is None:
            # This LMCache does not report from which tier it loaded.
            return WatchdogOutcome.FOUND
        # Another gateway may have stored or loaded it after the drop.
        if sum(prefetched.loaded.values()) < canary.chunk_count:
            return WatchdogOutcome.NOT_LOOKED
        first = facts.first_tier
        return WatchdogOutcome.FOUND if first is None or first in prefetched.loaded else _WITHOUT[first]

    async def _store_until_found(
        self,
        cache: KvTier,
        canary: Prefix,
        miss: WatchdogOutcome,
        look: Callable[[], Awaitable[WatchdogOutcome]],
    ) -> WatchdogOutcome:
        """Store and check, at most twice: a busy LMCache may not have begun to write below L1 before the check drops L1."""
        for _ in range(_STORED_AT_MOST):
            await self._store_again(cache, canary, miss)
            if (outcome := await look()) not in _MISSED:
                break
        return outcome

    async def _store_again(self, cache: KvTier, canary: Prefix, miss: WatchdogOutcome) -> None:
        """Store the prefix again. If another tier still has it, delete it first: LMCache would not store it otherwise.

        If no tier can load it, store it without deleting: another gateway may have just stored it.
        """
        if miss in _ELSEWHERE:
            with suppress(CwmError):
                await cache.delete(canary.key, cache.expected_hashes(canary.key) or ())
        await self._require_every_lmcache()
        self.directory.confirm(canary.identity, await self._flush(canary))
        deadline = self.clock.monotonic() + _STORED_WITHIN_SECONDS
        # vLLM stores after it has answered: first its chunks reach L1, then the tiers below.
        while not (await cache.prefetch(canary.key)).complete and self.clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        while await cache.storing() and self.clock.monotonic() < deadline:  # noqa: ASYNC110 - polled over HTTP
            await asyncio.sleep(_POLL_SECONDS)

    async def _require_every_lmcache(self) -> None:
        """Raise if any LMCache is down: a vLLM that has not noticed would wait for it in its next request, and die of it."""
        facts = await self.kv_tier.facts()
        for instance in facts.instances if facts else ():
            await (await self.kv_tier.on(instance)).facts()

    async def _flush(self, canary: Prefix) -> Completion:
        """Compute the prefix. The request is never cancelled half-way: the engine may be loading KV for it."""
        return await outlasting(self._flushing.start(self.engine.complete(canary.request())))

    async def _canary(self, instance: str, identity: EngineIdentity) -> Prefix:
        """The stored prefix: one for each instance and engine, the same for every gateway."""
        previous = self._canaries.get(instance)
        if previous is not None and previous.identity == identity:
            return previous
        mark = hashlib.sha256(instance.encode()).hexdigest()[:_MARK_CHARS]
        text = _TEXT.format(mark=mark, instance=instance)
        ids = await self.engine.tokenize(identity.model, text, add_special_tokens=False)
        length = _CHUNKS * (identity.stored_chunk or 0) + 1
        token_ids = fitting((ids * (length // len(ids) + 1))[:length], identity)
        canary = Prefix(token_ids, self.directory.salt(_TENANT, "", identity), identity)
        self._canaries[instance] = canary
        return canary


def _judge(first: WatchdogOutcome, second: WatchdogOutcome, *, existed: bool) -> WatchdogOutcome:
    """The final result, from a confirmed miss and the result after the prefix was stored again."""
    if second is WatchdogOutcome.FOUND:
        return WatchdogOutcome.LOST if existed else WatchdogOutcome.STORED
    if second is WatchdogOutcome.NOT_LOOKED and existed:
        return first
    # It is in no tier now: another gateway may be storing it at this moment; the next check decides.
    return first if first in _ELSEWHERE and second is WatchdogOutcome.BROKEN else second


def _watchable(facts: KvTierFacts, identity: EngineIdentity) -> bool:
    """Whether there is a tier below L1 and an attached vLLM whose chunks can be in it: one that reuses KV."""
    roots = {attached.root for attached in facts.attached}
    chunk = identity.stored_chunk or identity.max_model_len
    return bool(facts.adapters) and identity.root in roots and chunk + 1 < identity.max_model_len
