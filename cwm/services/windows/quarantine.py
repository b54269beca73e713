"""Quarantine: delete a window's wrong KV wherever it is, and nothing else, and store the window again from its tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.audit import Severity
from cwm.domain.engine import engine_key
from cwm.domain.errors import CwmError, EngineConnectionError, EngineResponseError, InvalidParameterError
from cwm.domain.intent import Intent
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.verdict import Evidence
from cwm.domain.window import Retention, Window
from cwm.ports.engine import Engine
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.aside import outlasting
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.release import Release, debt_of
from cwm.services.sessions.salt_scopes import SaltScopes

StoreAgain = Callable[[Window, Intent, TokenIds, int], None]

_MOST_NAMES: Final = 20
_MOST_DEBTS: Final = 64


@dataclass(frozen=True, slots=True)
class _Condemned:
    """``others``: windows that held the same chunks. ``scope_retired``: an engine could not drop its copy, so the whole salt was left."""

    blocks_deleted: int
    others: Sequence[str]
    scope_retired: bool
    pending: tuple[Window, Intent] | None


@dataclass(frozen=True, slots=True)
class Quarantine:
    """``store_again`` stores a pending window's KV in the background, of which the first so many tokens were kept and are proven."""

    registry: Registry
    engine: Engine
    kv_tier: KvTier
    directory: EngineDirectory
    scopes: SaltScopes
    journal: Journal
    release: Release
    store_again: StoreAgain
    _condemning: BackgroundTasks = field(default_factory=BackgroundTasks)
    _debts: defaultdict[str, list[tuple[Window, Prefix, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """What engines that were away are to drop behind so many tokens, by their names."""

    async def __call__(
        self, principal: Principal, window: Window, prefix: Prefix, evidence: Evidence
    ) -> None:
        """Delete the chunks from the last place on at which the KV was still right. A caller that disconnects does not stop it."""
        await outlasting(self._condemning.start(self._condemn(principal, window, prefix, evidence)))

    async def settle(self) -> None:
        """Wait for quarantines whose callers have disconnected."""
        await self._condemning.settled()

    async def _condemn(
        self, principal: Principal, window: Window, prefix: Prefix, evidence: Evidence
    ) -> None:
        intent = await self.registry.begin_quarantine(window, self.journal.clock.now())
        if intent is None:
            # The window was deleted, replaced or stored under another salt meanwhile.
            return
        sound_tokens = evidence.sound_tokens
        try:
            condemned = await self._remove(window, prefix, sound_tokens)
        except BaseException:
            await self.release.leave(intent)
            raise
        if condemned.pending is not None:
            proven = 0 if condemned.scope_retired else sound_tokens
            self.store_again(*condemned.pending, prefix.token_ids, proven)
        self.journal.meter.event("quarantine")
        details = {
            "blocks_deleted": condemned.blocks_deleted,
            "first_token": sound_tokens,
            "deviation": evidence.distance.largest,
            "others_unproven": list(condemned.others[:_MOST_NAMES]),
            "scope_retired": condemned.scope_retired,
        }
        await self.journal.note(
            principal, "window.quarantine", "mismatch", details, Severity.ERROR, window_name=window.name
        )

    async def resume(self, intent: Intent) -> None:
        """Finish a quarantine whose gateway has died. Raises while the engine is away."""
        window = await self.registry.window(intent.tenant, intent.window_name)
        if window is None or window.cache_salt != intent.cache_salt:
            await self.registry.end_intent(intent.tenant, intent.id)
            return
        identity = await self.directory.like(window.identity, window.tenant)
        snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
        prefix = Prefix(fitting(snapshot.token_ids, identity), window.cache_salt, identity)
        condemned = await self._remove(window, prefix, 0)
        if condemned.pending is not None:
            self.store_again(*condemned.pending, prefix.token_ids, 0)

    async def _remove(self, window: Window, prefix: Prefix, sound_tokens: int) -> _Condemned:
        hashes = [chunk.hash for chunk in await self.registry.chunks(window.tenant, window.name)]
        suspect = hashes[sound_tokens // (window.identity.chunk_size or 1) :]
        await self.kv_tier.delete(prefix.key, suspect)
        dropped = await self._drop_everywhere(window, prefix, sound_tokens)
        if dropped:
            # A turn that used the wrong blocks meanwhile may have stored them again.
            await self.kv_tier.delete(prefix.key, suspect)
        others = await self.registry.doubt_windows(window, suspect)
        pending = await self._pending_again(
            window, prefix, () if dropped else tuple(hashes), retire=not dropped
        )
        return _Condemned(len(suspect), others, not dropped, pending)

    async def _drop_everywhere(self, window: Window, prefix: Prefix, sound_tokens: int) -> bool:
        """Have every engine of the deployment drop its own copy, and what was computed on top of it; False if any cannot.

        One that is away drops it when it is back. The engine that restored the window computes the context again, which the window is
        stored from.
        """
        for name in self.directory.names(window.tenant, any_state=True):
            try:
                dropped = await self._drop(name, prefix, sound_tokens)
            except EngineConnectionError:
                dropped = len(self._debts[name]) < _MOST_DEBTS
                if dropped:
                    self._debts[name].append((window, prefix, sound_tokens))
            if not dropped:
                return False
        return True

    async def _drop(self, engine: str, prefix: Prefix, sound_tokens: int) -> bool:
        """False if the engine cannot. CWM-5001 while it is away."""
        identity = prefix.identity
        try:
            if engine != identity.engine:
                identity = await self.directory.identity(identity.model, engine)
        except InvalidParameterError:
            return True  # it serves another model
        except EngineResponseError:
            return False
        if engine_key(identity) != engine_key(prefix.identity):
            return True
        request = replace(prefix, identity=identity).request()
        try:
            answer = await self.engine.complete(
                replace(request, drop_after=sound_tokens, load_tokens=0, store_tokens=0)
            )
        except EngineConnectionError:
            raise
        except CwmError:
            return False
        return answer.dropped_blocks is not None and not self.directory.is_router(engine)

    async def drop_owed(self) -> None:
        """Have engines that are back drop what they were to drop while they were away."""
        for name, debts in list(self._debts.items()):
            with suppress(CwmError):
                while debts and name in self.directory.names(debts[0][0].tenant):
                    window, prefix, sound_tokens = debts[0]
                    if not await self._drop(name, prefix, sound_tokens):
                        await self.scopes.retire(window.tenant, window.salt_scope)
                        self.journal.meter.event("scope_retired")
                    debts.pop(0)

    async def _pending_again(
        self, window: Window, prefix: Prefix, unused: tuple[str, ...], *, retire: bool
    ) -> tuple[Window, Intent] | None:
        """Make the window pending; under a new salt if ``retire``. None if another gateway changed it.

        ``unused``: chunks under the old salt that go, unless another window refers to them.
        """
        scope, identity = window.salt_scope, prefix.identity
        if retire:
            scope = await self.scopes.retire(window.tenant, window.salt_scope)
            self.journal.meter.event("scope_retired")
        pinned = window.retention is Retention.GUARANTEED and identity.stored_chunk is not None
        old = Prefix(fitting(prefix.token_ids, window.identity), window.cache_salt, window.identity)
        again = await self.registry.store_again(
            window,
            scope,
            self.directory.salt(window.tenant, scope, identity),
            identity,
            self.journal.clock.now(),
            pinned=pinned,
            debt=debt_of(old, pinned=window.pinned, hashes=unused),
        )
        if again is None:
            return None
        pending, intent, debt = again
        await self.release(debt)
        return pending, intent
