"""Plan a thaw from the measured speeds of earlier ones, and learn from this one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Final
from uuid import uuid4

from cwm.background import BackgroundTasks
from cwm.domain.engine import EngineIdentity, Tier, engine_key
from cwm.domain.errors import CwmError
from cwm.domain.planner import Choice, Plan, decide, obvious, trial
from cwm.domain.speeds import Observation, Pace, Run, Speeds, fit
from cwm.ports.clock import Clock
from cwm.ports.engine import Completion, Engine, Generation
from cwm.ports.kv_tier import KvTier, Placement
from cwm.ports.meter import Meter
from cwm.ports.speeds import SpeedRecords
from cwm.services.kv.origins import ENGINE_TIER
from cwm.services.kv.prefix import Prefix
from cwm.threads import in_thread

_LOWER_TIERS: Final = (Tier.REDIS, Tier.DISK)  # used if LMCache does not report its tiers
_TRIAL_SALT: Final = "cwm1-pace"
_TRIALS_AT_ONCE: Final = 3
# The thaw is answered first: learning would compete with it for the processor.
_LEARN_AFTER_SECONDS: Final = 0.1


@dataclass(slots=True)
class Planner:
    """Keeps the pace of each engine: read from the records, then updated by the thaws of this gateway."""

    engine: Engine
    kv_tier: KvTier
    records: SpeedRecords
    meter: Meter
    clock: Clock
    choice: Choice = Choice.AUTO
    _paces: dict[str, Pace] = field(default_factory=dict)
    _unlimited: set[str] = field(default_factory=set)
    _learning: BackgroundTasks = field(default_factory=BackgroundTasks)
    _trial_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def plan(self, prefix: Prefix) -> Plan:
        """The plan of a thaw, counted. Never fails."""
        plan = await self.predict(prefix)
        self.meter.event(f"thaw_plan_{plan.decision}")
        return plan

    async def predict(self, prefix: Prefix) -> Plan:
        """Never fails. Without the directory or the records the plan is to load, as on an engine that ignores limits."""
        pace = await self._pace(prefix.identity)
        choice = self.choice
        if choice is Choice.AUTO and engine_key(prefix.identity) in self._unlimited:
            choice = Choice.LOAD
        stored = prefix.stored_tokens
        plan = obvious(pace, len(prefix.token_ids), stored) if choice is Choice.AUTO else None
        if plan is None:
            runs = await self._resident(prefix) if choice is Choice.AUTO else []
            plan = decide(pace, len(prefix.token_ids), runs, stored, choice)
        return plan

    def learn(
        self,
        prefix: Prefix,
        plan: Plan,
        answer: Completion,
        by_tier: Mapping[str, int],
        *,
        prefetch_ms: float,
        engine_ms: float,
    ) -> None:
        """Record how long a thaw took, if it is clear what it did. Runs in the background."""
        if plan.load_tokens is not None and answer.loaded_tokens is None:
            self._unlimited.add(engine_key(prefix.identity))
        observation = _observed(answer, by_tier, prefetch_ms, engine_ms)
        if observation is not None:
            self._learning.start(self._learn(prefix, observation))

    async def settle(self) -> None:
        """Wait until every observation is recorded."""
        await self._learning.settled()

    async def _pace(self, identity: EngineIdentity) -> Pace:
        name = engine_key(identity)
        if name not in self._paces:
            try:
                speeds = await self.records.speeds(name)
            except CwmError:
                return Pace(Speeds())
            self._paces[name] = await in_thread(fit, speeds)
        return self._paces[name]

    async def _resident(self, prefix: Prefix) -> list[Run]:
        try:
            placements = await self.kv_tier.lookup(prefix.key) if prefix.chunk_count else []
        except CwmError:
            return []
        order = (Tier.CPU, *(self.kv_tier.lower_tiers() or _LOWER_TIERS))
        return resident(placements, prefix.identity.stored_chunk or 0, order)

    async def _learn(self, prefix: Prefix, observation: Observation) -> None:
        await asyncio.sleep(_LEARN_AFTER_SECONDS)
        pace = await self._note(prefix.identity, observation)
        if self._trial_lock.locked():
            return
        async with self._trial_lock:
            for _ in range(_TRIALS_AT_ONCE):
                tokens = self._worth_trying(prefix, pace, observation)
                trial_observation = await self._trial(prefix, tokens) if tokens else None
                if trial_observation is None:
                    return
                pace = await self._note(prefix.identity, trial_observation)

    async def _note(self, identity: EngineIdentity, observation: Observation) -> Pace:
        name = engine_key(identity)
        try:
            speeds = await self.records.add_speeds(name, [observation], self.clock.now())
        except CwmError:
            pace = self._paces.get(name, Pace(Speeds()))
            speeds = pace.speeds.plus([observation])
        pace = self._paces[name] = await in_thread(fit, speeds)
        return pace

    def _worth_trying(self, prefix: Prefix, pace: Pace, observation: Observation) -> int | None:
        """How many tokens to try, for a thaw like the one just observed; None if a trial would not help."""
        if self.choice is not Choice.AUTO or engine_key(prefix.identity) in self._unlimited:
            return None
        runs = [(observation.tier, observation.loaded)] if observation.tier is not None else []
        token_count = observation.context + observation.computed
        return trial(pace, decide(pace, token_count, runs, observation.loaded), token_count)

    async def _trial(self, prefix: Prefix, tokens: int) -> Observation | None:
        """Time a prefill that loads and stores nothing, with ids in an order that no cache has."""
        start = uuid4().int % len(prefix.token_ids)
        ids = (prefix.token_ids[start:] + prefix.token_ids[:start])[:tokens]
        request = Generation(
            prefix.identity.model,
            ids,
            _TRIAL_SALT,
            1,
            {"temperature": 0},
            load_tokens=0,
            store_tokens=0,
            engine=prefix.identity.engine,
        )
        started = self.clock.monotonic()
        try:
            answer = await self.engine.complete(request)
        except CwmError:
            return None
        took_ms = (self.clock.monotonic() - started) * 1000
        self.meter.event("thaw_plan_trial")
        if answer.fingerprint not in {None, prefix.identity.fingerprint}:
            return None
        if answer.loaded_tokens is None and prefix.chunk_count:
            self._unlimited.add(engine_key(prefix.identity))
        return Observation(
            None, 0, answer.cached_tokens, answer.prompt_tokens - answer.cached_tokens, took_ms
        )


def resident(placements: Sequence[Placement], chunk_size: int, order: Sequence[Tier]) -> list[Run]:
    """Runs of tokens by the first tier of ``order`` that has them, up to the first chunk that no tier has."""
    first = [next((tier for tier in order if tier in placement.tiers), None) for placement in placements]
    tiers = takewhile(lambda tier: tier is not None, first)
    return [(str(tier), len(list(chunks)) * chunk_size) for tier, chunks in groupby(tiers)]


def _observed(
    answer: Completion, by_tier: Mapping[str, int], prefetch_ms: float, engine_ms: float
) -> Observation | None:
    """The observation; None for tokens of several or unknown tiers, whose speeds cannot be told apart."""
    cached, computed = answer.cached_tokens, answer.prompt_tokens - answer.cached_tokens
    if set(by_tier) <= {ENGINE_TIER}:
        return Observation(None, 0, cached, computed, engine_ms)
    tier = next(iter(by_tier))
    if len(by_tier) > 1 or tier not in set(Tier):
        return None
    return Observation(tier, cached, cached, computed, prefetch_ms + engine_ms)
