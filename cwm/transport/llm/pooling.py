"""Embeddings, scores, ranks and classes: forwards requests to models that do not generate."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from cwm.services.turns.finding.request import ClientRequest
from cwm.services.turns.sending.pooling import Pooling
from cwm.transport.http.envelope import body_of, forwarded, headers_of, returned, send_whole, target_of
from cwm.transport.http.request_keys import PRINCIPAL
from cwm.transport.llm.turns import watching_the_client


@dataclass(frozen=True, slots=True)
class PoolingEndpoint:
    pooling: Pooling

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        target = target_of(scope, scope["path"].rstrip("/"))
        request = ClientRequest("POST", target, forwarded(headers), await body_of(scope, receive))
        async with watching_the_client(request.left, receive):
            answer = await self.pooling(scope[PRINCIPAL], request)
            await send_whole(send, answer.status, returned(answer.headers), answer.content)
