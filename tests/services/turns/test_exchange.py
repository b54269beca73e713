"""An exchange with the engine does not hold up the other requests of its gateway."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cwm.adapters.vllm.turns.openai.answer import BodyAnswer
from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.ports.engine import SessionName
from cwm.services.turns.sending.exchange import Exchange, Head, Outgoing
from tests.fakes.engine import FakeEngine

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
START = {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 1}}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
CREATED = [{"type": f"response.{state}", "response": {}} for state in ("created", "in_progress")]
ITEM = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}}


def chat(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None, "token_ids": [1]}]}


def block(kind: str, name: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, name: "{"}}


def item(kind: str) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": 0, "delta": "{"}


class Responding(FakeEngine):
    """Answers each forwarded request with one JSON body of about ``size`` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    @asynccontextmanager
    async def forward(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        session: SessionName | None = None,
    ) -> AsyncIterator[_Response]:
        yield _Response(b'{"choices": [{"text": "' + b"x" * self._size + b'"}]}')


class _Response:
    status = 200
    headers = ((b"content-type", b"application/json"),)
    decision = None

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body


class Computing(FakeEngine):
    """Answers with the events of ``head`` at once, with the event ``token`` when it is ``released``, and then waits for its end."""

    def __init__(self, head: list[dict[str, Any]], token: dict[str, Any]) -> None:
        super().__init__()
        self._events = head, token
        self.computes, self.released = asyncio.Event(), asyncio.Event()
        self.generated, self.ends = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def forward(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        session: SessionName | None = None,
    ) -> AsyncIterator[Computing]:
        yield self

    status = 200
    headers = ((b"content-type", b"text/event-stream"),)
    decision = None

    async def chunks(self) -> AsyncIterator[bytes]:
        head, token = self._events
        for event in head:
            yield f"data: {json.dumps(event)}\n\n".encode()
        self.computes.set()
        await self.released.wait()
        yield f"data: {json.dumps(token)}\n\n".encode()
        self.generated.set()
        await self.ends.wait()


class Watched(BodyAnswer):
    """Notes which thread reads the answer."""

    __slots__ = ("thread",)

    def finish(self) -> bytes:
        self.thread = threading.current_thread()
        return super().finish()


@pytest.mark.parametrize(("size", "aside"), [(1_000, False), (1_000_000, True)])
async def test_a_large_answer_is_read_beside_the_event_loop(size: int, *, aside: bool) -> None:
    answer = Watched(hide_ids=True)

    async def settle(_: Exchange, head: Head, answer: object) -> None:
        """Nothing to record."""

    exchange = Exchange(
        Responding(size), Outgoing("POST", "/v1/completions", b"{}", {}), lambda _: answer, settle
    )
    running = asyncio.create_task(exchange.run())
    body = b"".join([chunk async for chunk in exchange.chunks()])
    await running
    assert len(body) > size
    assert (answer.thread is not threading.current_thread()) is aside


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("path", "head", "token"),
    [
        (CHAT, [ROLE], chat(content="a")),
        (CHAT, [ROLE], chat(reasoning="a")),
        (CHAT, [ROLE], chat(tool_calls=[{"index": 0, "function": {"arguments": "{"}}])),
        (MESSAGES, [START, BLOCK], block("text_delta", "text")),
        (MESSAGES, [START, BLOCK], block("thinking_delta", "thinking")),
        (MESSAGES, [START, BLOCK], block("input_json_delta", "partial_json")),
        (RESPONSES, [*CREATED, ITEM], item("output_text")),
        (RESPONSES, [*CREATED, ITEM], item("reasoning_text")),
        (RESPONSES, [*CREATED, ITEM], item("function_call_arguments")),
    ],
)
async def test_the_first_token_is_the_first_piece_of_an_answer_and_no_event_before_it(
    path: str, head: list[dict[str, Any]], token: dict[str, Any], *, recorded: bool
) -> None:
    engine, request = Computing(head, token), VllmWire().read(path, b'{"stream":true}')

    async def settle(_: Exchange, head: Head, answer: object) -> None:
        """Nothing to record."""

    exchange = Exchange(
        engine,
        Outgoing("POST", path, b"{}", {}),
        lambda head: request.answer(status=head.status, streamed=head.streamed, recorded=recorded),
        settle,
    )
    running = asyncio.create_task(exchange.run())
    await engine.computes.wait()
    before_token = exchange.first_token_ms
    engine.released.set()
    await engine.generated.wait()
    assert before_token is None
    assert exchange.first_token_ms is not None
    engine.ends.set()
    await running
