"""Drain: an engine gets no new sessions, and those that it serves go elsewhere with their KV."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

from cwm.background import cancel_and_wait
from cwm.domain.engine_health import EngineHealth
from cwm.domain.errors import (
    CwmError,
    EngineConnectionError,
    EngineIncompatibleError,
    EngineTimeoutError,
    SessionNotActiveError,
)
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.survey import Survey
from cwm.services.moves.move import Move

_AT_A_TIME: Final = 200
_AGAIN_SECONDS: Final = 1.0
_ATTEMPTS: Final = 5
_MOST_TENANTS: Final = 20
_NOT_IN_TIME: Final = EngineTimeoutError("The drain ended before the session could move.")

OnMoved: TypeAlias = Callable[[int, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Stayed:
    """A session that could not move, and why after how many ``attempts``."""

    tenant: str
    session_id: str
    error: CwmError
    attempts: int = 1

    @property
    def is_final(self) -> bool:
        """Whether this drain does not try again. A turn in flight ends, and that an engine is gone is seen after some seconds."""
        if isinstance(self.error, SessionNotActiveError):
            return not self.error.retryable
        return not self.error.retryable or self.attempts >= _ATTEMPTS


@dataclass(frozen=True, slots=True)
class Drained:
    """How far a drain came. ``moved`` counts sessions of the tenants that the drain is for, ``stayed`` are those that it leaves behind.

    ``is_up``: whether the engine answered to its end. ``since`` is None if the drain was undone. ``to_compute`` counts sessions of an old
    deployment: they go on at the new one, which computes their context.
    """

    engine: str
    since: datetime | None
    moved: int
    stayed: tuple[Stayed, ...]
    is_up: bool
    to_compute: int = 0


async def uncounted(_moved: int, _of: int) -> None:
    """Of a drain that nobody watches."""


@dataclass(slots=True)
class _Progress:
    """The sessions that moved, and what keeps the others: by tenant and id."""

    moved: int = 0
    to_compute: int = 0
    stayed: dict[tuple[str, str], Stayed] = field(default_factory=dict)
    targets: Counter[str] = field(default_factory=Counter)
    tenants: Counter[str] = field(default_factory=Counter)

    def go(self, session: Session, target: str) -> None:
        """The session is on the target now."""
        self.targets[target] += 1
        self.tenants[session.tenant] += 1
        self.stayed.pop((session.tenant, session.id), None)

    def keep(self, sessions: Sequence[Session], error: CwmError) -> None:
        """These sessions stay, and no others: with what kept them, else with ``error``."""
        keys = [(each.tenant, each.id) for each in sessions]
        self.stayed = {key: self.stayed.get(key) or Stayed(*key, error) for key in keys}


@dataclass(frozen=True, slots=True)
class Drain:
    registry: Registry
    directory: EngineDirectory
    survey: Survey
    move: Move
    journal: Journal
    clock: Clock

    async def __call__(
        self,
        principal: Principal,
        engine: str,
        *,
        timeout_seconds: float = 300.0,
        on_moved: OnMoved = uncounted,
    ) -> Drained:
        """Move the sessions of an engine to others, and give it no new ones until that is undone.

        Ends when none is left, when none of those that are left can move, or after the timeout. It may be repeated. A session that
        was not moved yet goes on where it is. For who does not run the gateway only sessions of the own tenant move. CWM-1003 for an engine
        that the principal does not see; CWM-9002 for one that serves other tenants, too; 4001, 4002.
        """
        async with self.journal.entry(principal, "engine_drain") as details:
            details.update(self._named(engine))
            self.survey.require_own(principal, engine)
            await self.registry.drain_engine(engine, self.clock.now())
            since = (await self.registry.drained_engines()).get(engine)
            progress = _Progress()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._until_empty(principal, engine, progress, on_moved)
            except TimeoutError:
                count = (await self.survey.session_counts(principal)).get(engine, 0)
                progress.keep(await self._served(principal, engine, count), _NOT_IN_TIME)
            details.update(moved=progress.moved, stayed=len(progress.stayed))
            details.update(to_compute=progress.to_compute)
            if others := progress.tenants.keys() - {principal.tenant}:
                details["of_tenants"] = {
                    name: progress.tenants[name] for name in sorted(others)[:_MOST_TENANTS]
                }
        is_up = self.directory.health.get(engine, EngineHealth()).is_up
        stayed = tuple(progress.stayed.values())
        return Drained(engine, since, progress.moved, stayed, is_up, progress.to_compute)

    async def undo(self, principal: Principal, engine: str) -> Drained:
        """Let the engine take new sessions again; those that moved stay where they are.

        Who runs the gateway also undoes that of one that is not on the list any more. CWM-1003, 9002 as for a drain; 4001, 4002.
        """
        async with self.journal.entry(principal, "engine_undrain") as details:
            details.update(self._named(engine))
            is_drained = engine in await self.registry.drained_engines()
            if not (is_drained and self.survey.operators.have(principal)):
                self.survey.require_own(principal, engine)
            await self.registry.undo_drain(engine)
        is_up = self.directory.health.get(engine, EngineHealth()).is_up
        return Drained(engine, None, 0, (), is_up)

    def _named(self, engine: str) -> dict[str, str]:
        """For the audit log, which has no words of a caller's own."""
        return {"engine": engine} if engine in self.directory.names("", any_state=True) else {}

    async def _served(self, principal: Principal, engine: str, limit: int) -> list[Session]:
        """Sessions that the drain of the principal is for."""
        if tenant := self.survey.operators.shown_to(principal):
            return await self.registry.served_sessions(tenant, engine, limit)
        return await self.registry.served_sessions_of_every_tenant(engine, limit)

    async def _until_empty(
        self, principal: Principal, engine: str, progress: _Progress, on_moved: OnMoved
    ) -> None:
        while True:
            session_count = (await self.survey.session_counts(principal)).get(engine, 0)
            finals = {key for key, stayed in progress.stayed.items() if stayed.is_final}
            sessions = await self._served(principal, engine, _AT_A_TIME + len(finals))
            waiting = [each for each in sessions if (each.tenant, each.id) not in finals]
            if not waiting:
                progress.keep(sessions, _NOT_IN_TIME)
                return
            before, gone_before = progress.moved, progress.moved + progress.to_compute
            in_hand = iter(waiting)

            async def some() -> None:
                for session in in_hand:  # noqa: B023 - ends before the next round
                    await self._one(principal, session, engine, progress)
                    await on_moved(progress.moved, before + session_count)  # noqa: B023

            workers = [asyncio.create_task(some()) for _ in range(self.move.at_once)]
            try:
                await asyncio.gather(*workers)
            finally:
                await cancel_and_wait(*workers)
            if progress.moved + progress.to_compute == gone_before:
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _one(self, principal: Principal, session: Session, engine: str, progress: _Progress) -> None:
        """Move a session to the engine that takes it, of those that got the fewest so far. Its tenant's audit log says who drains."""
        key = (session.tenant, session.id)
        drains = await self.registry.drained_engines()
        targets = [
            name
            for name in await self.directory.candidates(session.model, session.tenant)
            if name not in drains and not self.directory.is_router(name)
        ]
        error: CwmError = EngineIncompatibleError(
            f"No other engine that serves '{session.model}' is there.", model=session.model
        )
        for target in sorted(targets, key=lambda name: progress.targets[name]):
            try:
                await self.move(session.keeper, session.id, target, actor=principal)
            except (EngineIncompatibleError, EngineConnectionError) as refusal:
                # Another one may take it. Only where none can ever, that is the reason.
                error = refusal if isinstance(error, EngineIncompatibleError) else error
            except CwmError as failure:
                error = failure
                break
            else:
                progress.moved += 1
                progress.go(session, target)
                return
        if isinstance(error, EngineIncompatibleError) and (
            successor := await self._let_go(session, engine, targets, progress)
        ):
            progress.to_compute += 1
            progress.go(session, successor)
            await self.move.note_left(session, engine, successor, principal)
            return
        now = await self.registry.session(*key)
        if now is not None and now.engine == engine:
            attempts = progress.stayed[key].attempts + 1 if key in progress.stayed else 1
            progress.stayed[key] = Stayed(*key, error, attempts)

    async def _let_go(
        self, session: Session, engine: str, targets: Sequence[str], progress: _Progress
    ) -> str | None:
        """The engine of the new deployment of an upgraded model that serves the session from now on, without its KV; None if there is none."""
        upgrade = (await self.registry.upgrades()).get(session.model)
        if upgrade is None:
            return None
        deployments = await self.directory.deployments(session.model, session.tenant)
        if engine in deployments and upgrade.is_to(deployments[engine]):
            return None
        new = [name for name in targets if name in deployments and upgrade.is_to(deployments[name])]
        if not new:
            return None
        target = min(new, key=lambda name: progress.targets[name])
        settled_engine = await self.registry.settle_session(session, target, engine)
        return target if settled_engine == target else None
