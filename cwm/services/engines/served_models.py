"""Which models each engine serves, as far as the engines have said it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cwm.domain.errors import CwmError, EngineResponseError, EngineTimeoutError, InvalidParameterError
from cwm.ports.engine import Engine, ServedModel


@dataclass(slots=True, eq=False, repr=False)
class ServedModels:
    engine: Engine
    by_engine: dict[str, list[ServedModel]] = field(default_factory=dict)
    """What each engine serves, as far as is known."""
    engines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The engines of each served model; empty while they are not known."""
    _changed: set[str] = field(default_factory=set)
    """Engines that did not answer since they said what they serve."""

    def is_current(self, engine: str) -> bool:
        """Whether an engine has answered ever since it said what it serves."""
        return engine in self.by_engine and engine not in self._changed

    def forget(self, engine: str = "") -> None:
        """What an engine serves may have changed; without one, nothing is known any more."""
        if engine:
            self._changed.add(engine)
        else:
            self.by_engine, self.engines = {}, {}

    async def read(self, names: Sequence[str], seconds: float | None) -> dict[str, list[ServedModel]]:
        """The models of those of the engines that answer, each within ``seconds`` if there is such a limit. The first one's error if none does."""
        answers = await asyncio.gather(
            *(self._models_of(name, seconds) for name in names), return_exceptions=True
        )
        by_engine = {
            name: answer
            for name, answer in zip(names, answers, strict=True)
            if not isinstance(answer, BaseException)
        }
        for answer in answers:
            if isinstance(answer, BaseException) and (not by_engine or not isinstance(answer, CwmError)):
                raise answer
        self._changed -= by_engine.keys()
        self._note({**self.by_engine, **by_engine})
        # The list may have changed meanwhile.
        return {name: models for name, models in by_engine.items() if name in self.engine.names()}

    async def _models_of(self, engine: str, seconds: float | None) -> list[ServedModel]:
        """CWM-6001 for one of several engines that holds up the others."""
        if seconds is None:
            return await self.engine.on(engine).models()
        try:
            async with asyncio.timeout(seconds):
                return await self.engine.on(engine).models()
        except TimeoutError:
            raise EngineTimeoutError(
                f"Engine '{engine}' does not answer within {seconds:g} s.", engine=engine
            ) from None

    def _note(self, models: dict[str, list[ServedModel]]) -> None:
        """Note what each engine serves."""
        self.by_engine, self.engines = models, {}
        for name in self.engine.names():
            for served in models.get(name, ()):
                self.engines[served.id] = (*self.engines.get(served.id, ()), name)


def offers(by_engine: Mapping[str, list[ServedModel]], engine: str) -> list[tuple[str, ServedModel]]:
    """Names of engines, each with a model on it; of one engine if one is named."""
    return [(name, served) for name, models in by_engine.items() for served in models if engine in {"", name}]


def choose(by_engine: Mapping[str, list[ServedModel]], model: str, engine: str) -> tuple[str, ServedModel]:
    """The engine's name, and the model on it: the first that serves it unless one is named. CWM-1003, 5002."""
    candidates = offers(by_engine, engine)
    if not candidates:
        raise EngineResponseError("The engine serves no model.")
    for name, served in candidates:
        if model == served.id:
            return name, served
    raise not_served(model, [served.id for _, served in candidates])


def not_served(model: str | None, served: Sequence[str]) -> InvalidParameterError:
    return InvalidParameterError(
        f"The engine does not serve the model '{model}'." if model else "No engine serves a model here.",
        field="model",
        served=list(dict.fromkeys(served)),
    )
