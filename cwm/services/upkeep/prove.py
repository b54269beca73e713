"""Prove: compares windows whose canary proves nothing with their context computed afresh, while their engine is idle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from cwm.domain.canary import Origin, origin_of
from cwm.domain.engine import EngineIdentity, differences
from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.domain.upkeep import Step, StepOutcome
from cwm.domain.verdict import Evidence, Verification
from cwm.domain.window import Window
from cwm.ports.clock import Clock
from cwm.ports.engine import Engine
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.control import Control
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.verify import Comparison, Verify, canary_of
from cwm.services.windows.quarantine import Quarantine

ACTION: Final = "prove"
_SUBJECT: Final = "cwm"
_SET_ASIDE: Final = timedelta(hours=1)
# An engine spends at most a fifth of its time on it.
_REST: Final = 4


@dataclass(slots=True)
class Prove:
    """One window at a time for each engine. Automatic windows and those of earlier versions have no canary that proves anything."""

    registry: Registry
    engine: Engine
    kv_tier: KvTier
    directory: EngineDirectory
    verify: Verify
    control: Control
    quarantine: Quarantine
    clock: Clock
    _aside: dict[tuple[str, str], datetime] = field(default_factory=dict)
    _resting_until: dict[str, float] = field(default_factory=dict)

    async def __call__(self) -> list[Step]:
        """Prove at most one window on each engine, the newest first. Engines that work for others are left alone."""
        if not self.verify.most_places:
            return []
        now = self.clock.now()
        self._aside = {name: until for name, until in self._aside.items() if until > now}
        due = await self.registry.unproven_windows_of_every_tenant(
            1 + len(self._aside) + len(self.engine.names())
        )
        steps: list[Step] = []
        used: set[str] = set()
        for window in due:
            if _key(window) in self._aside:
                continue
            try:
                identity = await self.directory.like(window.identity, window.tenant)
                if identity.engine in used or not await self._is_idle(identity.engine):
                    continue
                used.add(identity.engine)
                steps += await self._timed(window, identity)
            except CwmError:
                # The engine is away, or does not serve the model.
                self._set_aside(window)
        return steps

    async def _is_idle(self, engine: str) -> bool:
        if self.clock.monotonic() < self._resting_until.get(engine, 0.0):
            return False
        counters = await self.engine.on(engine).counters()
        return not counters.requests_running and not counters.requests_waiting

    async def _timed(self, window: Window, identity: EngineIdentity) -> list[Step]:
        started = self.clock.monotonic()
        try:
            return await self._prove(window, identity)
        finally:
            ended = self.clock.monotonic()
            self._resting_until[identity.engine] = ended + _REST * (ended - started)

    async def _prove(self, window: Window, identity: EngineIdentity) -> list[Step]:
        snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
        prefix = Prefix(fitting(snapshot.token_ids, identity), window.cache_salt, identity)
        places = self.verify.places(prefix)
        if not places or any(not change.changes_tokens for change in differences(window.identity, identity)):
            self._set_aside(window)
            return []
        await self.kv_tier.prefetch(prefix.key)
        answer = await self.engine.complete(replace(prefix.request(), tell_loaded=True))
        looks = await self.verify.looked(prefix, places)
        if looks is None:
            self._set_aside(window)
            return []
        if origin_of(answer.resting_tokens) is Origin.COMPUTED:
            # What is stored was lost or is the engine's own: it was computed since the engine started.
            await self.registry.record_canary(window, canary_of(looks, Origin.COMPUTED))
            return [self._step(window, "computed by the engine itself")]
        known = await self.registry.canary(window.tenant, window.snapshot_id, window.cache_salt)
        canary = (
            canary_of(looks, Origin.UNPROVEN) if known is None else replace(known, origin=Origin.UNPROVEN)
        )
        comparison = Comparison(Evidence(Verification.UNDECIDED, origin=Origin.UNPROVEN), looks)
        evidence = await self.control(window.tenant, prefix, canary, comparison)
        if evidence.verification is Verification.MISMATCH:
            await self.quarantine(Principal(window.tenant, _SUBJECT), window, prefix, evidence)
            return [self._step(window, "its KV is wrong, and was deleted")]
        if not evidence.verification.is_good:
            self._set_aside(window)
            return []
        await self.registry.record_canary(window, canary_of(looks, Origin.INHERITED))
        return [self._step(window, f"{evidence.verification}, compared with the context computed afresh")]

    def _set_aside(self, window: Window) -> None:
        """Skip the window for an hour, so that it does not delay those that can be proven now."""
        self._aside[_key(window)] = self.clock.now() + _SET_ASIDE

    def _step(self, window: Window, detail: str) -> Step:
        return Step(ACTION, window.tenant, window.name, StepOutcome.DONE, detail)


def _key(window: Window) -> tuple[str, str]:
    return window.tenant, window.name
