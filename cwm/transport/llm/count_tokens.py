"""Counts: of a message, which the engine counts, and of what a response would go on from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from starlette.types import Receive, Scope, Send

from cwm.services.turns.finding.request import ClientRequest
from cwm.services.turns.sending.count_response import CountResponse
from cwm.services.turns.sending.pass_through import PassThrough
from cwm.transport.http.envelope import body_of, forwarded, headers_of, returned, send_whole, target_of
from cwm.transport.http.request_keys import PRINCIPAL
from cwm.transport.llm.turns import turn_headers

_COUNTED: Final = "/input_tokens"
_JSON: Final = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class CountEndpoint:
    pass_through: PassThrough

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        target = target_of(scope, scope["path"].rstrip("/"))
        request = ClientRequest("POST", target, forwarded(headers), await body_of(scope, receive))
        answer = await self.pass_through.count(scope[PRINCIPAL], request)
        content = b"".join([chunk async for chunk in answer.chunks()])
        answer_headers = returned(answer.headers) + turn_headers(answer)
        await send_whole(send, answer.status, answer_headers, content)


@dataclass(frozen=True, slots=True)
class CountResponseEndpoint:
    count: CountResponse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        target = scope["path"].rstrip("/").removesuffix(_COUNTED)
        request = ClientRequest("POST", target, forwarded(headers), await body_of(scope, receive))
        tokens = await self.count(scope[PRINCIPAL], request)
        content = json.dumps({"object": "response.input_tokens", "input_tokens": tokens}).encode()
        await send_whole(send, 200, [_JSON], content)
