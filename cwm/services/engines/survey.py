"""Survey: what each engine is, and what it does now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from cwm.domain.engine_health import EngineHealth
from cwm.domain.errors import CwmError, InvalidParameterError
from cwm.ports.registry import Registry
from cwm.services.engines.directory import EngineDirectory


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine. ``since``: when it went or came back, None if it never went; ``reason``: why it is away.

    ``no_reuse``: why it neither stores nor loads KV, empty where it does.
    ``deployments`` by model: what its KV depends on, as a digest; empty for a model that does not generate. ``running`` requests of anybody; ``sessions`` of all tenants that it serves.
    """

    name: str
    is_up: bool
    since: datetime | None
    reason: str
    deployments: Mapping[str, str]
    running: int
    sessions: int
    draining_since: datetime | None
    no_reuse: str = ""


@dataclass(frozen=True, slots=True)
class Survey:
    """``patience_seconds``: how long it waits for an engine."""

    registry: Registry
    directory: EngineDirectory
    patience_seconds: float = 3.0

    async def __call__(self) -> list[EngineState]:
        """Every engine, in the order of the directory; one that does not answer has no models and no load. CWM-4002."""
        sessions = await self.registry.session_counts_of_every_tenant()
        drains = await self.registry.drained_engines()
        names = self.directory.engine.names()
        answers = await asyncio.gather(*(self._asked(name) for name in names))
        return [
            self._state(name, deployments, running, sessions.get(name, 0), drains.get(name))
            for name, (deployments, running) in zip(names, answers, strict=True)
        ]

    def require(self, engine: str) -> None:
        """CWM-1003 unless there is an engine of this name."""
        names = [name for name in self.directory.engine.names() if name]
        if engine not in names:
            raise InvalidParameterError(f"There is no engine '{engine}'.", field="engine", engines=names)

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
