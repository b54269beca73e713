"""Which engines are there, which models they serve to whom, and how busy they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cwm.domain.engine_health import EngineHealth
from cwm.domain.engine_rules import NO_RULES, EngineRules
from cwm.domain.errors import CwmError, EngineConnectionError
from cwm.domain.model_aliases import ModelAliases
from cwm.ports.clock import Clock
from cwm.ports.engine import Engine, ServedModel
from cwm.services.engines.served_models import ServedModels, not_served

# Of a look at one of several engines, which delays none of the others.
_LOOK_SECONDS: Final = 5.0


@dataclass(eq=False, repr=False)
class EngineRoster:
    engine: Engine
    aliases: ModelAliases = field(default_factory=ModelAliases, kw_only=True)
    rules: Mapping[str, EngineRules] = field(default_factory=dict, kw_only=True)
    """What the installation says of engines that it lists, by name."""
    health: dict[str, EngineHealth] = field(default_factory=dict, kw_only=True)
    """What was seen of each engine, by name."""
    _sent: int = field(default=0, init=False)
    _served: ServedModels = field(init=False)

    def __post_init__(self) -> None:
        self._served = ServedModels(self.engine)

    def names(self, tenant: str, *, any_state: bool = False) -> tuple[str, ...]:
        """The engines that serve a tenant; those that are there if any is, unless ``any_state``."""
        names = [name for name in self.engine.names() if self.rules.get(name, NO_RULES).serves(tenant)]
        if any_state:
            return tuple(names)
        return tuple(name for name in names if self._seen(name).is_up) or tuple(names)

    def models(self, tenant: str = "") -> tuple[str, ...]:
        """The models of the engines that serve a tenant and are there, as far as they are known."""
        served = (model.id for name in self.names(tenant) for model in self._served.by_engine.get(name, ()))
        return tuple(dict.fromkeys(served))

    def is_there(self, engine: str) -> bool:
        """Whether an engine has answered a look and is not gone since."""
        return self._seen(engine).is_up and self._seen(engine).has_answered

    def back_in(self, tenant: str, at: datetime) -> float:
        """Seconds until an engine of a tenant is likely back; 0 if one is there."""
        return min((self._seen(name).back_in(at) for name in self.names(tenant, any_state=True)), default=0.0)

    @property
    def is_one(self) -> bool:
        """Whether there is one engine, of which nothing is said: then there is nothing to choose."""
        return not self.rules and len(self.engine.names()) == 1

    def is_router(self, engine: str) -> bool:
        """Whether it chooses an engine itself."""
        return self.rules.get(engine, NO_RULES).is_router

    def is_full(self, engine: str) -> bool:
        most = self.rules.get(engine, NO_RULES).max_running
        return most is not None and self._seen(engine).load >= most

    def meant(self, name: str) -> str:
        """The model that a caller means by ``name``, as far as is known without asking the engines; else ``name``."""
        models = self._served.engines.keys() or set(self.aliases.by_pattern.values())
        return self.aliases.served(name, models) or name

    async def served_name(self, client_name: str | None, tenant: str) -> str:
        """The name of the model that a caller means; the only one if none is named. CWM-1003 if it is not served to the tenant.

        Nothing else is asked of it: it may be one that does not generate.
        """
        await self._learn(client_name, tenant)
        served = self.models(tenant)
        name = self.meant(client_name) if client_name else served[0] if len(served) == 1 else None
        if name is None or name not in served:
            raise self._refusal(name, served, tenant)
        return name

    async def candidates(self, model: str, tenant: str) -> tuple[str, ...]:
        """The names of the engines that serve ``model`` to ``tenant`` and are there.

        The one with the least work is the first, of equals the one that was not asked for longest.
        """
        await self._learn(model, tenant)
        serving = self._served.engines.get(model, ())
        here = [name for name in self.names(tenant) if name in serving and self._seen(name).is_up]
        here = [name for name in here if self._is_well(name)] or here
        return tuple(sorted(here, key=lambda name: (self._seen(name).load, self._seen(name).last_sent)))

    async def takes(self, engine: str | None, model: str, tenant: str) -> bool:
        """Whether an engine is there, serves ``model`` to ``tenant`` and is not full."""
        return await self._is_served(engine or "", model, tenant) and not self.is_full(engine or "")

    async def _is_served(self, engine: str, model: str, tenant: str) -> bool:
        """Whether an engine is there and serves ``model`` to ``tenant``."""
        await self._learn(model, tenant)
        is_served = engine in self._served.engines.get(model, ()) and self._is_well(engine)
        return is_served and self.rules.get(engine, NO_RULES).serves(tenant)

    async def _learn(self, model: str | None, tenant: str) -> None:
        """Ask those of a tenant's engines that are there and have not said what they serve; all of them if none is known to serve ``model``.

        Raises only if nothing is known then. One that does not say what it serves takes nothing until it has answered a look.
        """
        names = self.names(tenant)
        is_known = (
            model in self._served.engines if model else any(name in self._served.by_engine for name in names)
        )
        if not is_known:
            await self._look(names)
            return
        silent = [name for name in names if name not in self._served.by_engine and self._is_well(name)]
        with suppress(CwmError):
            await self._look(silent)
        for name in silent:
            if name not in self._served.by_engine:
                self.lose(name)

    async def _look(self, names: Sequence[str]) -> dict[str, list[ServedModel]]:
        """The models of those of the engines that answer. The first one's error if none does."""
        return await self._served.read(names, None if self.is_one else _LOOK_SECONDS)

    def _is_well(self, engine: str) -> bool:
        return self._seen(engine).is_up and not self._seen(engine).is_lost

    def _is_reserved(self, tenant: str) -> bool:
        """Whether some engine does not serve a tenant."""
        return not all(rules.serves(tenant) for rules in self.rules.values())

    async def _one_for(self, model: str | None, tenant: str) -> str:
        await self._learn(model, tenant)
        names = [name for name in self.names(tenant) if name in self._served.by_engine]
        for name in names:
            if model is None or name in self._served.engines.get(model, ()):
                return name
        raise self._refusal(
            model, [served.id for name in names for served in self._served.by_engine[name]], tenant
        )

    def _refusal(self, model: str | None, served: Sequence[str], tenant: str) -> CwmError:
        """Why no engine that is there serves ``model`` to ``tenant``: those that do may only be away, and then it is to be asked again."""
        names = self.names(tenant, any_state=True)
        if model is not None and any(name in names for name in self._served.engines.get(model, ())):
            return EngineConnectionError(f"No engine that serves '{model}' answers.", model=model)
        return not_served(model, served)

    def _seen(self, engine: str) -> EngineHealth:
        return self.health.setdefault(engine, EngineHealth())

    @contextmanager
    def works(self, engine: str) -> Iterator[None]:
        """Counts a request to an engine, from when it is decided to its end."""
        health = self._seen(engine)
        self._sent += 1
        health.sent, health.last_sent = health.sent + 1, self._sent
        try:
            yield
        finally:
            health.sent -= 1

    def lose(self, engine: str) -> None:
        """The engine broke a connection or took none: while there is another, it takes nothing until it has answered a look."""
        if engine:
            self._seen(engine).is_lost = True

    async def answers(self, engine: str) -> bool:
        """Whether an engine answers now. One that does not is lost."""
        with suppress(CwmError, TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self.engine.on(engine).health()
                return True
        self.lose(engine)
        return False

    async def watch(self, interval_seconds: float, clock: Clock) -> None:
        """Look at every engine again and again, and forget those that do not answer. Runs until cancelled.

        The interval must be shorter than the restart of any engine. One that is slow to answer delays no look at the others.
        """
        looks: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                names = self.engine.names()
                looks = {name: look for name, look in looks.items() if name in names and not look.done()}
                for gone in self.health.keys() - set(names):
                    # An address that comes back may be another engine's.
                    del self.health[gone]
                for name in names:
                    if name not in looks:
                        looks[name] = group.create_task(self.look_at(name, clock))
                await asyncio.sleep(interval_seconds)

    async def look_at(self, name: str, clock: Clock) -> None:
        """Ask one engine whether it is well; and if there are others, how much it has to do, and what it serves if that is not known."""
        health, reason = self._seen(name), ""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await self.engine.on(name).health()
        except CwmError as error:
            self.forget(name)
            reason = error.message
        except TimeoutError:
            reason = f"It did not answer within {_LOOK_SECONDS:g} s."
        if reason:
            health.failed(clock.now(), reason)
            return
        health.answered(clock.now())
        if self.is_one:
            return
        with suppress(CwmError, TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                counters = await self.engine.on(name).counters()
            health.counted(counters.requests_running, counters.requests_waiting)
        if not self._served.is_current(name):
            with suppress(CwmError):
                await self._look([name])

    def forget(self, engine: str = "") -> None:
        """What one engine serves, or any of them, may have changed; the next use asks again."""
        self._served.forget(engine)
