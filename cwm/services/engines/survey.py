"""Survey: what each engine is, and what it does now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from cwm.domain.engine_health import EngineHealth
from cwm.domain.engine_rules import NO_RULES
from cwm.domain.errors import CwmError, InvalidParameterError, SecurityError
from cwm.domain.operators import ANOTHER_TENANT, Operators
from cwm.domain.principal import Principal
from cwm.ports.registry import Registry
from cwm.services.engines.directory import EngineDirectory


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine. ``since``: when it went or came back, None if it never went; ``reason``: why it is away.

    ``no_reuse``: why it neither stores nor loads KV, empty where it does.
    ``deployments`` by model: what its KV depends on, as a digest; empty for a model that does not generate. ``running`` requests of anybody, None for
    who may not know what other tenants do; ``sessions`` of the tenants that the caller sees. ``is_own``: whether the caller's tenant commands it.
    """

    name: str
    is_up: bool
    since: datetime | None
    reason: str
    deployments: Mapping[str, str]
    running: int | None
    sessions: int
    draining_since: datetime | None
    no_reuse: str = ""
    is_own: bool = True


@dataclass(frozen=True, slots=True)
class Survey:
    """Who runs the gateway sees and commands every engine, another tenant sees those that serve it, and commands those that serve it alone.

    ``patience_seconds``: how long it waits for an engine.
    """

    registry: Registry
    directory: EngineDirectory
    operators: Operators
    patience_seconds: float = 3.0

    async def __call__(self, principal: Principal) -> list[EngineState]:
        """Every engine that the principal sees, in the order of the directory; one that does not answer has no models and no load. CWM-4002."""
        sessions = await self.session_counts(principal)
        drains = await self.registry.drained_engines()
        names = self._seen(principal)
        answers = await asyncio.gather(*(self._asked(name) for name in names))
        states = [
            self._state(name, deployments, running, sessions.get(name, 0), drains.get(name))
            for name, (deployments, running) in zip(names, answers, strict=True)
        ]
        return [
            each if self.commands(principal, each.name) else replace(each, running=None, is_own=False)
            for each in states
        ]

    async def session_counts(self, principal: Principal) -> Mapping[str, int]:
        """How many live sessions each engine serves, of those tenants of which the principal sees figures. CWM-4002."""
        if tenant := self.operators.shown_to(principal):
            return await self.registry.session_counts(tenant)
        return await self.registry.session_counts_of_every_tenant()

    def commands(self, principal: Principal, engine: str) -> bool:
        """Whether the principal's tenant commands the engine: every one, or one that serves nobody else."""
        rules = self.directory.rules.get(engine, NO_RULES)
        return self.operators.have(principal) or rules.serves_only(principal.tenant)

    def require(self, principal: Principal, engine: str) -> None:
        """CWM-1003 unless the principal sees an engine of this name."""
        names = [name for name in self._seen(principal) if name]
        if engine not in names:
            raise InvalidParameterError(f"There is no engine '{engine}'.", field="engine", engines=names)

    def require_own(self, principal: Principal, engine: str) -> None:
        """CWM-1003 as for :meth:`require`; CWM-9002 for an engine that serves other tenants, too."""
        self.require(principal, engine)
        if not self.commands(principal, engine):
            raise SecurityError(
                f"Engine '{engine}' serves other tenants, too: it needs the scope admin in the gateway's own tenant.",
                reason=ANOTHER_TENANT,
                engine=engine,
            )

    def _seen(self, principal: Principal) -> tuple[str, ...]:
        return self.directory.names(self.operators.shown_to(principal), any_state=True)

    def _state(
        self,
        name: str,
        deployments: Mapping[str, str],
        running: int,
        sessions: int,
        draining_since: datetime | None,
    ) -> EngineState:
        health = self.directory.health.get(name, EngineHealth())
        return EngineState(
            name,
            health.is_up,
            health.since,
            health.reason,
            deployments,
            running,
            sessions,
            draining_since,
            self.directory.no_reuse(name),
        )

    async def _asked(self, name: str) -> tuple[Mapping[str, str], int]:
        """The models with their deployments, and the running requests."""
        deployments: dict[str, str] = {}
        running = 0
        with suppress(CwmError, TimeoutError):
            async with asyncio.timeout(self.patience_seconds):
                engine = self.directory.engine.on(name)
                running = round((await engine.counters()).requests_running)
                for model in await engine.models():
                    with suppress(CwmError):
                        deployments[model.id] = await self.directory.deployment_of(model.id, name)
        return deployments, running
