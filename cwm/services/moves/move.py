"""Move: a session's current branch goes to another engine, with its KV and a proof that it is the same there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias

from cwm.background import BackgroundTasks, cancel_and_wait
from cwm.domain.audit import Severity, acting
from cwm.domain.canary import Canary, Origin
from cwm.domain.engine import EngineIdentity, differences
from cwm.domain.engine_health import EngineHealth
from cwm.domain.errors import (
    CwmError,
    EngineConnectionError,
    EngineIncompatibleError,
    EngineResponseError,
    InvalidParameterError,
    SessionMovingError,
    TurnInFlightError,
)
from cwm.domain.names import require_session_id
from cwm.domain.prefix import digest
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.turn import Turn
from cwm.domain.verdict import Evidence, Verification, skipped
from cwm.domain.visibility import Right
from cwm.ports.clock import Clock
from cwm.ports.engine import Engine
from cwm.ports.kv_tier import KvTier, Prefetched
from cwm.ports.registry import Registry
from cwm.services.access.sight import session_of
from cwm.services.aside import outlasting
from cwm.services.audit.journal import Journal, of_another
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.control import Control
from cwm.services.kv.origins import Origins
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.store import Store
from cwm.services.kv.verify import Verify
from cwm.services.sessions.open_session import scope_of_session
from cwm.services.turns.reading.current import Current

_LEASE: Final = timedelta(seconds=15)
_RENEW_SECONDS: Final = 5.0

OnStep: TypeAlias = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Moved:
    """The receipt of a move. Counts in tokens and blocks, times in ms.

    ``source`` is None if it is not known which engine served the session; it did not answer unless ``source_answered``. Of the ``token_count``
    tokens of the context the target restored ``tokens_restored`` (``tokens_by_tier`` says from where), and computed the others.
    ``blocks_found`` of ``blocks_total`` were loaded from the shared tiers. ``evidence``: the target's KV compared with the look
    at that of ``canary_of`` (source, window); None if there was none.
    """

    session_id: str
    source: str | None
    target: str
    token_count: int
    tokens_restored: int
    tokens_recomputed: int
    tokens_by_tier: Mapping[str, int]
    blocks_found: int
    blocks_total: int
    evidence: Evidence
    canary_of: str | None
    source_answered: bool
    move_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Cargo:
    """What the target has now, and the canary to compare it with."""

    loaded: Prefetched
    canary: Canary | None
    canary_of: str | None
    is_proven: bool = False
    """Whether the KV that the canary was recorded on is known to be right."""


async def unseen(_step: str) -> None:
    """Of steps that nobody watches."""


@dataclass(slots=True)
class Move:
    """At most ``at_once`` moves run in this process; others wait for their turn."""

    registry: Registry
    engine: Engine
    kv_tier: KvTier
    directory: EngineDirectory
    store: Store
    verify: Verify
    control: Control
    origins: Origins
    current: Current
    journal: Journal
    clock: Clock
    at_once: int = 2
    _places: asyncio.Semaphore = field(init=False)
    _moving: BackgroundTasks = field(default_factory=BackgroundTasks)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.at_once)

    async def __call__(
        self,
        principal: Principal,
        session_id: str,
        engine: str,
        on_step: OnStep = unseen,
        *,
        actor: Principal | None = None,
    ) -> Moved:
        """Let ``engine`` serve the session from now on. Until the KV is proven to be there, nothing changes.

        ``actor``: who has it moved with the rights of ``principal``, for the audit log. Meanwhile turns wait for a moment, then go on where the session is. Of an engine that does not answer any more the session is
        taken with what the shared tiers have. A caller that disconnects does not stop the move. CWM-1001; CWM-1003 for an
        unknown engine or one that is drained; 2001, 3002 (retryable while a turn or a move is in flight); CWM-3011 if the engine serves
        another model or deployment; 4001, 5001, 6001; CWM-5002 if the KV is wrong there. Where that can't be decided
        the session moves, and its context is computed.
        """
        require_session_id(session_id)
        by = principal if actor is None else actor.acting_in(principal.tenant)
        async with self.journal.entry(by, "session_move", session_id=session_id) as details:
            details.update(acting(actor, principal.tenant))
            session = await session_of(self.registry, principal, session_id, Right.RECORD)
            session.require_live("a move")
            details.update(of_another(by, session.owner), source=session.engine, target=engine)
            receipt = await outlasting(self._moving.start(self._one_of_few(session, engine, on_step)))
            details.update(
                verification=receipt.evidence.verification.value,
                tokens_restored=receipt.tokens_restored,
                tokens_recomputed=receipt.tokens_recomputed,
                source_answered=receipt.source_answered,
            )
        return receipt

    async def note_left(self, session: Session, source: str, target: str, actor: Principal) -> None:
        """Record that a session goes on at another deployment, without its KV. CWM-4001."""
        by = actor.acting_in(session.tenant)
        details = {**acting(actor, session.tenant), **of_another(by, session.owner)}
        details |= {"source": source, "target": target, "verification": Verification.SKIPPED.value}
        await self.journal.note(
            by,
            "session_move",
            "success",
            details | {"to_compute": True},
            Severity.INFO,
            session_id=session.id,
        )

    async def settle(self) -> None:
        """Wait for moves whose callers have disconnected."""
        await self._moving.settled()

    async def _one_of_few(self, session: Session, engine: str, on_step: OnStep) -> Moved:
        async with self._places:
            started = self.clock.monotonic()
            target = await self._target(session, engine)
            if session.engine == engine:
                return _unmoved(session, engine)
            await on_step("waits for a turn in flight")
            # Before the session is held: until then its other turns wait for nothing.
            await self.current(session, ask=False)
            async with self._held(session):
                receipt = await self._move(session, target, on_step)
            return replace(receipt, move_ms=round((self.clock.monotonic() - started) * 1000))

    async def _target(self, session: Session, engine: str) -> EngineIdentity:
        # What serves other tenants only is answered like what there is not.
        names = self.directory.names(session.tenant, any_state=True)
        if not engine or engine not in names:
            raise InvalidParameterError(
                f"There is no engine '{engine}'.", field="engine", engines=[name for name in names if name]
            )
        if engine in await self.registry.drained_engines():
            raise InvalidParameterError(
                f"Engine '{engine}' is being drained: it takes no sessions.", field="engine"
            )
        for name in (engine, session.engine or ""):
            if self.directory.is_router(name):
                raise EngineIncompatibleError(
                    f"At '{name}' a router chooses the engine: no session moves there or from there.",
                    engine=name,
                )
        if not self._is_up(engine):
            raise EngineConnectionError(f"Engine '{engine}' does not answer.", engine=engine)
        try:
            return await self.directory.identity(session.model, engine)
        except InvalidParameterError as unserved:
            raise EngineIncompatibleError(
                f"Engine '{engine}' does not serve '{session.model}', the model of session '{session.id}'.",
                engine=engine,
                model=session.model,
            ) from unserved

    async def _source(self, session: Session) -> EngineIdentity | None:
        """The identity on the engine that serves the session; None if that engine is gone."""
        name = session.engine
        if name is None or name not in self.engine.names() or not self._is_up(name):
            return None
        with suppress(CwmError):
            return await self.directory.identity(session.model, name)
        return None

    def _is_up(self, engine: str) -> bool:
        return self.directory.health.get(engine, EngineHealth()).is_up

    @asynccontextmanager
    async def _held(self, session: Session) -> AsyncIterator[None]:
        """Hold the session, so that no other move and for a moment no turn begins. CWM-3002 (retryable) if another move does."""
        until = await self.registry.hold_session(session, _LEASE)
        if until is None:
            raise SessionMovingError(
                f"Session '{session.id}' is being moved, or went elsewhere just now; look where it is and ask again.",
                session_id=session.id,
            )

        async def renew() -> None:
            nonlocal until
            while until is not None:
                await asyncio.sleep(_RENEW_SECONDS)
                with suppress(CwmError):
                    until = await self.registry.hold_session(session, _LEASE, until)

        renewal = asyncio.create_task(renew())
        try:
            yield
        finally:
            await cancel_and_wait(renewal)
            if until is not None:
                with suppress(CwmError):
                    await self.registry.release_session(session, until)

    async def _move(self, session: Session, target: EngineIdentity, on_step: OnStep) -> Moved:
        turn = await self.current(session, ask=False)
        if turn is None:
            await self._switch(session, target.engine)
            return replace(_unmoved(session, target.engine), source=session.engine)
        source = await self._source(session)
        there = await self._prefix(session, turn, source, target)
        await on_step(f"stores {len(there.token_ids):,} tokens and loads them on {target.engine}")
        if source is None:
            cargo = await self._from_tiers(session, there)
        else:
            cargo = await self._from_source(replace(there, identity=source), there)
        await on_step("restores and compares" if cargo.canary else "restores")
        receipt = await self._restored(session, there, cargo, source)
        last = await self.current.unmoved(session)
        if last is None or last.id != turn.id:
            raise TurnInFlightError(
                f"Session '{session.id}' went on while it was moved, and stays where it is; ask again.",
                session_id=session.id,
                in_flight=True,
            )
        if receipt.evidence.verification is Verification.UNDECIDED:
            receipt = await self._compute_apart(session, there, receipt)
        elif receipt.evidence.verification.is_good and cargo.is_proven:
            await self.registry.note_proven(session, there.token_ids)
        await self._switch(session, target.engine)
        return receipt

    async def _compute_apart(self, session: Session, there: Prefix, receipt: Moved) -> Moved:
        """Let the session go on under a salt of its own, with its context computed on the target."""
        scope = scope_of_session(session.id)
        apart = replace(there, cache_salt=self.directory.salt(session.tenant, scope, there.identity))
        await self.registry.set_apart(session, scope, apart.cache_salt)
        answer = await self.engine.complete(replace(apart.request(), load_tokens=0))
        return replace(
            receipt,
            tokens_restored=answer.cached_tokens,
            tokens_recomputed=answer.prompt_tokens - answer.cached_tokens,
            tokens_by_tier={},
        )

    async def _prefix(
        self, session: Session, turn: Turn, source: EngineIdentity | None, target: EngineIdentity
    ) -> Prefix:
        """The context on the target. CWM-3011 unless KV of the source is KV of the target."""
        salt = self.directory.salt(session.tenant, session.salt_scope, target)
        changes = () if source is None else differences(source, target)
        if changes or (source is None and turn.cache_salt not in {None, salt}):
            raise EngineIncompatibleError(
                f"Engine '{target.engine}' serves '{session.model}' in another deployment than '{session.engine}', so that "
                f"it cannot use the KV of session '{session.id}'.",
                engine=target.engine,
                model=session.model,
                differences=[str(change) for change in changes],
            )
        token_ids = await self.registry.turn_tokens(turn)
        return Prefix(fitting(token_ids, target), salt, target)

    async def _from_source(self, here: Prefix, there: Prefix) -> _Cargo:
        """Look at the KV on the source, which stores what is missing, and load all of it beside the target. CWM-4001.

        The target is compared with what the source has, wherever that came from.
        """
        prefetch, recording = await self.store.beside(here, there, partial(self.verify.record, here))
        canary = recording.canary if recording else None
        if canary is None:
            return _Cargo(prefetch, None, None)
        return _Cargo(
            prefetch, replace(canary, origin=Origin.INHERITED), "source", is_proven=canary.origin.is_proven
        )

    async def _from_tiers(self, session: Session, there: Prefix) -> _Cargo:
        """Load what the shared tiers have; nobody can store the rest."""
        prefetch = await self.kv_tier.prefetch(there.key) if there.chunk_count else Prefetched(0, 0)
        canary = None
        if self.verify.most_places and not there.identity.no_reuse:
            canary = await self.registry.canary(session.tenant, digest(there.token_ids), there.cache_salt)
        return _Cargo(prefetch, canary, "window" if canary else None, is_proven=canary is not None)

    async def _restored(
        self, session: Session, there: Prefix, cargo: _Cargo, source: EngineIdentity | None
    ) -> Moved:
        """Have the target restore the context, and compare it with the canary. CWM-5002 if it is wrong there."""
        counters = await self.origins.before(there.identity)
        answer = await self.engine.complete(replace(there.request(), tell_loaded=True))
        self.directory.confirm(there.identity, answer)
        by_tier = await self.origins.split(answer, counters, cargo.loaded.loaded, there)
        evidence = await self._compared(session, there, cargo, source)
        self.journal.meter.event(f"move_{evidence.verification}")
        self.journal.meter.verified(evidence.verification)
        if evidence.verification is Verification.MISMATCH:
            raise EngineResponseError(
                f"The KV of session '{session.id}' is wrong on engine '{there.identity.engine}': the session stays where it is.",
                engine=there.identity.engine,
                places=evidence.distance.places,
                deviation=evidence.distance.largest,
            )
        return Moved(
            session_id=session.id,
            source=session.engine,
            target=there.identity.engine,
            token_count=len(there.token_ids),
            tokens_restored=answer.cached_tokens,
            tokens_recomputed=answer.prompt_tokens - answer.cached_tokens,
            tokens_by_tier=by_tier,
            blocks_found=cargo.loaded.found,
            blocks_total=there.chunk_count,
            evidence=evidence,
            canary_of=cargo.canary_of,
            source_answered=source is not None,
        )

    async def _compared(
        self, session: Session, there: Prefix, cargo: _Cargo, source: EngineIdentity | None
    ) -> Evidence:
        if cargo.canary is None or there.identity.no_reuse:
            return skipped(self._why_unproven(session, there.identity, source))
        comparison = await self.verify.compare(there, cargo.canary)
        if comparison.evidence.verification is not Verification.UNDECIDED:
            return comparison.evidence
        return await self.control(session.tenant, there, cargo.canary, comparison)

    def _why_unproven(self, session: Session, target: EngineIdentity, source: EngineIdentity | None) -> str:
        if self.verify.most_places == 0:
            return "switched off"
        if reason := target.no_reuse or (source.no_reuse if source else ""):
            return reason
        if session.engine is None:
            return "it is not known which engine served the session"
        return "the context is too short or too long" if source else "the source did not answer"

    async def _switch(self, session: Session, engine: str) -> None:
        settled_engine = await self.registry.settle_session(session, engine, session.engine)
        if settled_engine != engine:
            raise SessionMovingError(
                f"Session '{session.id}' was deleted, or went elsewhere, while it was moved.",
                session_id=session.id,
            )


def _unmoved(session: Session, engine: str) -> Moved:
    """The receipt of a move that had no KV to carry."""
    evidence = skipped("there was nothing to move")
    return Moved(session.id, session.engine, engine, 0, 0, 0, {}, 0, 0, evidence, None, source_answered=True)
