"""Pooling: forwards requests to models that do not generate, which leave no record and use nobody's KV."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from cwm.background import cancel_and_wait
from cwm.domain.errors import CwmError, EngineConnectionError, InvalidParameterError
from cwm.domain.pooling import pooling_fields, salted, too_large, used_tokens
from cwm.domain.principal import Principal
from cwm.services.turns.finding.request import ClientRequest
from cwm.services.turns.sending.pass_through import PassThrough
from cwm.threads import aside

# Every kind of answer names its model before what was computed.
_HEAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class PooledAnswer:
    """The engine's whole answer."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    content: bytes


@dataclass(frozen=True, slots=True)
class Pooling:
    pass_through: PassThrough

    async def __call__(self, principal: Principal, incoming: ClientRequest) -> PooledAnswer:
        """Forward a request to the engine with the least work that serves its model to the caller's tenant.

        CWM-1003 for a model that is not served, or not for this, and for an answer that is too large; 5001, 5002, 6001; 7003 over a
        token budget.
        """
        limits, directory = self.pass_through.limits, self.pass_through.directory
        size = len(incoming.body)
        fields = await aside(size, partial(pooling_fields, incoming.body))
        await limits.require_tokens(principal)
        model = await directory.served_name(fields.get("model"), principal.tenant)
        salt = directory.plain_salt(principal.tenant, model)
        body = await aside(size, partial(salted, {**fields, "model": model}, salt))
        asking = self._answer(principal.tenant, model, replace(incoming, body=body))
        answer = await _unless_left(incoming.left, asking)
        if answer.status == HTTPStatus.NOT_FOUND and b'"error"' not in answer.content:
            path = incoming.path.partition("?")[0]
            raise InvalidParameterError(f"The model '{model}' does not serve {path}.", field="model")
        await limits.spend(principal, await aside(len(answer.content), partial(used_tokens, answer.content)))
        client_name = fields.get("model") or model
        return answer if client_name == model else self._renamed(answer, model, client_name)

    def _renamed(self, answer: PooledAnswer, served_name: str, client_name: str) -> PooledAnswer:
        rename, content = self.pass_through.wire.renaming(served_name, client_name), answer.content
        return replace(answer, content=rename(content[:_HEAD_BYTES]) + content[_HEAD_BYTES:])

    async def _answer(self, tenant: str, model: str, request: ClientRequest) -> PooledAnswer:
        """The answer of one engine; of another one if that is gone, which has said nothing to the client."""
        directory = self.pass_through.directory
        engine = await self._engine(tenant, model)
        try:
            return await self._ask(engine, request)
        except EngineConnectionError as lost:
            if directory.is_one or directory.is_router(engine):
                raise
            directory.lose(engine)
            try:
                other = await self._engine(tenant, model, lost_engine=engine)
            except CwmError:
                raise lost from None
        self.pass_through.journal.meter.event("answer_gone_on")
        return await self._ask(other, request)

    async def _engine(self, tenant: str, model: str, lost_engine: str = "") -> str:
        """The name of the engine that takes the request. In place of ``lost_engine``, it is no router and answers."""
        directory = self.pass_through.directory
        candidates = await directory.candidates(model, tenant)
        if lost_engine:
            candidates = tuple(
                [
                    name
                    for name in candidates
                    if name != lost_engine and not directory.is_router(name) and await directory.answers(name)
                ]
            )
        drained = await self.pass_through.place.registry.drained_engines()
        candidates = tuple(name for name in candidates if name not in drained) or candidates
        if not candidates:
            raise EngineConnectionError(f"No engine that serves '{model}' answers.", model=model)
        engine = next((name for name in candidates if not directory.is_full(name)), None)
        if engine is None:
            raise self.pass_through.place.full(model, len(candidates))
        return engine

    async def _ask(self, engine: str, request: ClientRequest) -> PooledAnswer:
        pass_through, journal = self.pass_through, self.pass_through.journal
        with (
            pass_through.directory.works(engine),
            journal.tracer.span("pass_through"),
            journal.meter.operation("pass_through"),
        ):
            async with pass_through.engine.on(engine).forward(
                request.method, request.path, request.body, request.headers
            ) as upstream:
                content = await _joined(upstream.chunks(), pass_through.wire.max_answer_bytes)
                return PooledAnswer(upstream.status, upstream.headers, content)


async def _unless_left(departure: asyncio.Event, asking: Coroutine[Any, Any, PooledAnswer]) -> PooledAnswer:
    """The answer. CWM-5001 if its client leaves before it is whole: the request ends, in the engine too."""
    answer, leaving = asyncio.create_task(asking), asyncio.create_task(departure.wait())
    try:
        await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise EngineConnectionError("The client has disconnected, and the request was given up.")
        return await answer
    finally:
        await cancel_and_wait(answer, leaving)


async def _joined(chunks: AsyncIterator[bytes], max_bytes: int) -> bytes:
    """All of an answer. CWM-1003 if it has more than ``max_bytes``."""
    pieces, size = [], 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise too_large(max_bytes)
        pieces.append(chunk)
    return b"".join(pieces)
