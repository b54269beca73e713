"""A gateway that dies after a chosen step: from then on nothing that it does has an effect."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from tests.services.fleet_of import Fleet, together
from tests.services.windows_of import Gateway, gateway


class DiedError(BaseException):
    """No handler of errors sees it, as none runs in a process that is killed."""


@dataclass(slots=True)
class Life:
    """``steps`` are the calls that left the process, in their order; after ``last`` of them it ends."""

    last: int | None = None
    steps: list[str] = field(default_factory=list)

    def require(self) -> None:
        if self.last is not None and len(self.steps) >= self.last:
            raise DiedError

    def made(self, step: str) -> None:
        self.steps.append(step)
        self.require()


class Mortal:
    """An adapter whose calls are steps of a life."""

    def __init__(self, adapter: Any, room: str, life: Life) -> None:
        self._adapter, self._room, self._life = adapter, room, life

    def __getattr__(self, name: str) -> Any:
        found, life = getattr(self._adapter, name), self._life
        step = f"{self._room}.{name}"
        if name == "beside":
            return lambda engine: Mortal(found(engine), self._room, life)
        if isasyncgenfunction(found):

            async def stream(*arguments: Any) -> Any:
                life.require()
                async for piece in found(*arguments):
                    yield piece
                life.made(step)

            return stream
        if not iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            life.require()
            result = await found(*arguments, **options)
            life.made(step)
            return result

        return call


def mortal_gateway(database: Database, fleet: Fleet, life: Life) -> Gateway:
    name = f"mortal-{life.last}"
    engines: Any = {each: Mortal(engine, each, life) for each, engine in fleet.engines.items()}
    registry: Any = Mortal(SqlRegistry(database, name), "registry", life)
    kv_tier: Any = Mortal(fleet.one.kv_tier, "lmcache", life)
    return gateway(
        database, fleet.one, name=name, registry=registry, served=together(engines), kv_tier=kv_tier
    )
