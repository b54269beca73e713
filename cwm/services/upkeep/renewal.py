"""Renewal: freezes the windows of a model that is upgraded again, on its new deployment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from cwm.background import BackgroundTasks, cancel_and_wait
from cwm.domain.engine import EngineIdentity, differences
from cwm.domain.errors import CwmError, ErrorKind, WindowIncompatibleError
from cwm.domain.prefix import TokenIds, common_length
from cwm.domain.upgrade import Upgrade
from cwm.domain.upkeep import Step, StepOutcome
from cwm.domain.window import Retention, Window
from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.aside import outlasting
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.neighbours import neighbours
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.release import Release, debt_of
from cwm.services.kv.store import Store
from cwm.services.kv.verify import Verify
from cwm.services.windows.delete import Delete

ACTION: Final = "freeze_again"
_SET_ASIDE: Final = timedelta(hours=1)
_NOT_FOR_IT: Final = "No engine of the new deployment serves its tenant."
_NO_CACHE: Final = "The engines of the new deployment have no LMCache."
_AWAY: Final = frozenset({ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT})


@dataclass(slots=True)
class Renewal:
    """``at_once``: how many windows are computed at the same time. ``delete`` knows what a window has in the cache."""

    registry: Registry
    kv_tier: KvTier
    directory: EngineDirectory
    store: Store
    verify: Verify
    release: Release
    delete: Delete
    clock: Clock
    at_once: int = 2
    _aside: dict[tuple[str, str], datetime] = field(default_factory=dict)
    _suspects: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """Windows at which the engine went, and until when that counts."""
    _renewing: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def __call__(self, limit: int, *, dry_run: bool) -> list[Step]:
        """Freeze at most ``limit`` windows of each upgraded model again, those proven longest ago first.

        Until its KV is proven on the new deployment a window has all that it had. One that cannot be frozen again stays as it
        is, and is tried again after an hour. One at which the engine went is tried after the others, and the second time that
        happens after an hour, too: it may be the cause.
        """
        now = self.clock.now()
        self._aside = {name: until for name, until in self._aside.items() if until > now}
        self._suspects = {name: until for name, until in self._suspects.items() if until > now}
        steps: list[Step] = []
        for upgrade in (await self.registry.upgrades()).values():
            done: list[Step] = []
            enough = limit + len(self._aside) + len(self._suspects)
            due = await self.registry.windows_to_renew_of_every_tenant(upgrade, enough)
            windows = [window for window in due if _key(window) not in self._aside]
            windows = sorted(windows, key=lambda window: _key(window) in self._suspects)[:limit]
            if dry_run:
                done = [
                    _step(window, StepOutcome.PLANNED, upgrade.identity.fingerprint) for window in windows
                ]
            elif windows and await self._target(upgrade, "") is not None:
                done = await self._each(upgrade, windows)
            steps += [replace(step, actor=upgrade.begun_by) for step in done]
        return steps

    async def settle(self) -> None:
        """Wait for windows that are still being stored although the gateway ends."""
        await self._renewing.settled()

    async def _each(self, upgrade: Upgrade, windows: Iterable[Window]) -> list[Step]:
        waiting, steps = iter(windows), list[Step]()

        async def some() -> None:
            for window in waiting:
                step = await self._look(upgrade, window)
                if step is not None:
                    steps.append(step)

        workers = [asyncio.create_task(some()) for _ in range(self.at_once)]
        try:
            await asyncio.gather(*workers)
        finally:
            await cancel_and_wait(*workers)
        return steps

    async def _look(self, upgrade: Upgrade, window: Window) -> Step | None:
        identity = None
        try:
            if await self._target(upgrade, "") is None:
                # It went while the windows before this one were computed.
                return None
            identity = await self._target(upgrade, window.tenant)
            if identity is None or identity.stored_chunk is None:
                self._set_aside(window)
                reason = _NOT_FOR_IT if identity is None else identity.no_reuse or _NO_CACHE
                return _step(window, StepOutcome.FAILED, reason)
            snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
            _require_same_tokens(window, identity, len(snapshot.token_ids))
            task = self._renewing.start(self._renew(window, identity, snapshot.token_ids))
            renewed = await outlasting(task)
        except CwmError as error:
            if error.kind in _AWAY and identity is not None and await self._is_away(identity.engine, window):
                return _step(window, StepOutcome.POSTPONED, error.message)
            self._set_aside(window)
            return _step(window, StepOutcome.FAILED, error.message)
        self._suspects.pop(_key(window), None)
        detail = f"by {identity.fingerprint}" if renewed else "it was changed meanwhile"
        return _step(window, StepOutcome.DONE, detail)

    async def _target(self, upgrade: Upgrade, tenant: str) -> EngineIdentity | None:
        deployments = await self.directory.deployments(upgrade.model, tenant)
        return next((each for each in deployments.values() if upgrade.is_to(each)), None)

    async def _is_away(self, engine: str, window: Window) -> bool:
        """Whether the failure is not the window's: the cache does not answer, or the engine does not, for the first time at this window."""
        if not await self.directory.answers(engine):
            if _key(window) in self._suspects:
                return False
            self._suspects[_key(window)] = self.clock.now() + _SET_ASIDE
            return True
        try:
            await self.kv_tier.beside(engine).facts()
            await self.kv_tier.registered()
        except CwmError:
            return True
        return False

    def _set_aside(self, window: Window) -> None:
        """Skip the window for an hour, so that it does not delay those that can be frozen again now."""
        self._suspects.pop(_key(window), None)
        self._aside[_key(window)] = self.clock.now() + _SET_ASIDE

    async def _renew(self, window: Window, identity: EngineIdentity, token_ids: TokenIds) -> bool:
        """Store, prove, then switch. False if the window was changed meanwhile."""
        salt = self.directory.salt(window.tenant, window.salt_scope, identity)
        prefix = Prefix(fitting(token_ids, identity), salt, identity)
        pinned = window.retention is Retention.GUARANTEED and prefix.chunk_count > 0
        old_debt = debt_of(prefix, pinned=pinned, hashes=await self._unshared(window, prefix))
        # A gateway that dies from here on leaves a debt, which the next one pays.
        intent = await self.registry.begin_renewal(window, salt, old_debt, self.clock.now())
        if intent is None:
            return False
        # What the client sees of the chat template stays what it was.
        then = replace(identity, template_digest=window.identity.template_digest or identity.template_digest)
        renewed = replace(window, cache_salt=salt, identity=then, pinned=pinned)
        try:
            if pinned:
                await self.kv_tier.pin(prefix.key)
            stored, recording = await self.store(prefix, partial(self.verify.record, prefix))
            canary = recording.canary if recording else None
            # Only now: sessions may have been thawed from it meanwhile.
            debt = await self.delete.debt(window)
            switched = await self.registry.finish_renewal(
                window, renewed, stored, intent, self.clock.now(), canary, debt
            )
        except BaseException:
            await self.release.leave(intent)
            raise
        if switched is None:
            await self.release.leave(intent)
            return False
        await self.release(switched[1])
        return True

    async def _unshared(self, window: Window, prefix: Prefix) -> tuple[str, ...]:
        """The hashes of the chunks that the window will own, after the longest prefix that a live session of the new deployment shares."""
        hashes = self.kv_tier.expected_hashes(prefix.key) or ()
        longest = 0
        beside = neighbours(self.registry, window.tenant, window.salt_scope, prefix.token_ids)
        async for session_id, other_ids in beside:
            if await self._is_under(prefix, window.tenant, session_id):
                longest = max(longest, common_length(prefix.token_ids, other_ids))
        return tuple(hashes[longest // (prefix.identity.stored_chunk or 1) :])

    async def _is_under(self, prefix: Prefix, tenant: str, session_id: str) -> bool:
        """Whether a session has its KV under the salt of the prefix; also if nobody can tell."""
        session = await self.registry.session(tenant, session_id)
        if session is None or session.engine is None:
            return session is not None
        try:
            identity = await self.directory.of(session)
        except CwmError:
            return True
        return self.directory.salt(tenant, session.salt_scope, identity) == prefix.cache_salt


def _require_same_tokens(window: Window, identity: EngineIdentity, token_count: int) -> None:
    """CWM-3005 if the new deployment reads the window's tokens otherwise, or does not take so many."""
    if token_count > identity.max_model_len:
        raise WindowIncompatibleError(
            f"Window '{window.name}' has {token_count} tokens, the new deployment takes {identity.max_model_len}.",
            window_name=window.name,
        )
    for change in differences(window.identity, identity):
        if change.field == "tokenizer_digest":
            raise WindowIncompatibleError(
                f"Window '{window.name}' was frozen with another tokenizer than that of the new deployment.",
                window_name=window.name,
            )


def _key(window: Window) -> tuple[str, str]:
    return window.tenant, window.name


def _step(window: Window, outcome: StepOutcome, detail: str) -> Step:
    return Step(ACTION, window.tenant, window.name, outcome, detail)
