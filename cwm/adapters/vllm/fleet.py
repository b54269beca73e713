"""Several vLLM servers as one engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, TypeVar

from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.errors import CwmError, EngineConnectionError, EngineTimeoutError
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.ports.engine import (
    Completion,
    Counters,
    Delta,
    ForwardedResponse,
    Generation,
    LookAnswer,
    ServedModel,
    SessionName,
)

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 5.0


class VllmFleet:
    """The port :class:`cwm.ports.engine.Engine` over vLLM servers by name.

    Which of them serves a model is known from when its models were asked for last.
    """

    def __init__(self, engines: Mapping[str, VllmEngine]) -> None:
        self.by_name = dict(engines)
        self._retired: list[VllmEngine] = []
        self._serving: dict[str, list[str]] = {}

    async def aclose(self) -> None:
        for engine in (*self._retired, *self.by_name.values()):
            await engine.aclose()

    def configure(self, engines: Mapping[str, VllmEngine]) -> None:
        """Replace the engines. What runs on one that is no longer among them goes on."""
        self._retired += [engine for engine in self.by_name.values() if engine not in engines.values()]
        self.by_name, self._serving = dict(engines), {}

    async def close_retired(self) -> None:
        """Close engines that are no longer among them and have nothing to do."""
        idle = [engine for engine in self._retired if engine.is_idle]
        self._retired = [engine for engine in self._retired if engine not in idle]
        for engine in idle:
            await engine.aclose()

    def names(self) -> tuple[str, ...]:
        return tuple(self.by_name)

    def on(self, name: str) -> VllmEngine | VllmFleet:
        return self.one(name) if name else self

    async def models(self) -> list[ServedModel]:
        """The models of all engines that answer, each once. CWM-5001/5002/6001 of the first if none does."""
        by_engine = await self._of_all(lambda engine: engine.models())
        model_by_name: dict[str, ServedModel] = {}
        serving: dict[str, list[str]] = {}
        for name, models in by_engine.items():
            for model in models:
                model_by_name.setdefault(model.id, model)
                serving.setdefault(model.id, []).append(name)
        self._serving = serving
        return list(model_by_name.values())

    async def version(self) -> str:
        return await self._first.version()

    async def paths(self) -> frozenset[str]:
        return await self._first.paths()

    async def health(self) -> None:
        await self._of_all(lambda engine: engine.health())

    async def tokenize(self, model: str, text: str, *, add_special_tokens: bool) -> TokenIds:
        return await self._of_any(
            model, lambda engine: engine.tokenize(model, text, add_special_tokens=add_special_tokens)
        )

    async def render(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
        asker: Principal | None = None,
    ) -> TokenIds:
        return await self._of_any(
            model,
            lambda engine: engine.render(
                model, messages, add_generation_prompt=add_generation_prompt, options=options, asker=asker
            ),
        )

    async def rendered(self, path: str, body: bytes) -> TokenIds:
        return await self._first.rendered(path, body)

    async def special_tokens(self, model: str) -> frozenset[str]:
        return await self._of_any(model, lambda engine: engine.special_tokens(model))

    async def require_tools(self, model: str, tools: Sequence[Mapping[str, Any]]) -> bool:
        return await self._of_any(model, lambda engine: engine.require_tools(model, tools))

    async def chat_template(self, model: str) -> str | None:
        return await self._of_any(model, lambda engine: engine.chat_template(model))

    async def kv_dtype(self) -> str | None:
        return await self._first.kv_dtype()

    async def kv_room(self) -> int | None:
        return await self._first.kv_room()

    async def started(self) -> str | None:
        return await self._first.started()

    async def complete(self, generation: Generation) -> Completion:
        return await (await self._asked(generation)).complete(generation)

    async def look(
        self, generation: Generation, places: Sequence[int], probes: Sequence[int] = ()
    ) -> LookAnswer:
        return await (await self._asked(generation)).look(generation, places, probes)

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        engine = await self._asked(generation)
        stream = engine.stream(generation)
        try:
            async for delta in stream:
                yield delta
        finally:
            await stream.aclose()

    async def counters(self) -> Counters:
        """The sums over the engines that answer."""
        each = [*(await self._of_all(lambda engine: engine.counters())).values()]
        sources: Counter[str] = Counter()
        for counters in each:
            sources.update(counters.prompt_tokens_by_source)
        return Counters(
            dict(sources),
            sum(counters.prefix_queries for counters in each),
            sum(counters.prefix_hits for counters in each),
            sum(counters.external_queries for counters in each),
            sum(counters.external_hits for counters in each),
            sum(counters.requests_running for counters in each),
            sum(counters.requests_waiting for counters in each),
        )

    async def abort(self, generation_ids: Sequence[str]) -> bool:
        ended = await self._of_all(lambda engine: engine.abort(generation_ids))
        return any(ended.values())

    def forward(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        session: SessionName | None = None,
    ) -> AbstractAsyncContextManager[ForwardedResponse]:
        return self._first.forward(method, path, body, headers, session)

    @property
    def _first(self) -> VllmEngine:
        """CWM-5001 while no name of engines has an address."""
        for engine in self.by_name.values():
            return engine
        raise EngineConnectionError("No engine is known.")

    def one(self, name: str) -> VllmEngine:
        """The engine of this name. CWM-5001 if there is none."""
        if name not in self.by_name:
            raise EngineConnectionError(f"There is no engine '{name}'.", engine=name)
        return self.by_name[name]

    async def _asked(self, generation: Generation) -> VllmEngine:
        if generation.engine:
            return self.one(generation.engine)
        return (await self._those_for(generation.model))[0]

    async def _those_for(self, model: str) -> list[VllmEngine]:
        """The engines that serve the model; the first of all, which has the words to refuse it, if none does."""
        if model not in self._serving:
            await self.models()
        return [self.by_name[name] for name in self._serving.get(model, ())] or [self._first]

    async def _of_any(self, model: str, ask: Callable[[VllmEngine], Awaitable[T]]) -> T:
        """The answer of the first engine of the model that is there. CWM-5001 of the last if none is."""
        *others, last = await self._those_for(model)
        for engine in others:
            with suppress(EngineConnectionError):
                return await ask(engine)
        return await ask(last)

    async def _of_all(self, ask: Callable[[VllmEngine], Awaitable[T]]) -> dict[str, T]:
        """The answers by engine. The first engine's error if none answers."""
        if not self.by_name:
            raise EngineConnectionError("No engine is known.")
        names = list(self.by_name)
        answers = await asyncio.gather(
            *(_in_time(ask(self.by_name[name]), name, alone=len(names) == 1) for name in names),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, CwmError):
                raise answer
        answer_by_engine = {
            name: answer
            for name, answer in zip(names, answers, strict=True)
            if not isinstance(answer, BaseException)
        }
        if not answer_by_engine:
            assert isinstance(answers[0], CwmError)
            raise answers[0]
        return answer_by_engine


async def _in_time(answer: Awaitable[T], engine: str, *, alone: bool) -> T:
    """CWM-6001 for one of several engines that holds up the others."""
    if alone:
        return await answer
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await answer
    except TimeoutError:
        raise EngineTimeoutError(
            f"Engine '{engine}' does not answer within {_PATIENCE_SECONDS:g} s.", engine=engine
        ) from None
