"""The middleware that tells token ids, around a small server whose answers are cut in every way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.deploy.modules import turn_ids

ASKS = [(b"cwm-token-ids", b"1")]
JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"


def output(prompt: list[int] | None, *answers: list[int]) -> SimpleNamespace:
    outputs = [SimpleNamespace(index=number, token_ids=ids) for number, ids in enumerate(answers)]
    return SimpleNamespace(prompt_token_ids=prompt, outputs=outputs)


async def _app(scope: Any, _receive: Any, send: Any) -> None:
    pieces = scope["body"](scope["app"].state.engine_client)
    first = await anext(pieces)
    headers = [(b"content-type", scope["kind"])]
    if scope["kind"] == JSON:
        headers.append((b"content-length", b"%d" % len(first)))
    await send({"type": "http.response.start", "status": scope["status"], "headers": headers})
    await send({"type": "http.response.body", "body": first, "more_body": True})
    async for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body"})


class Engine:
    """An engine client whose every prompt is answered with ``steps``; ``closed`` counts the answers given up."""

    def __init__(self, *steps: SimpleNamespace) -> None:
        self.steps = steps
        self.closed = 0
        self.server = turn_ids.TurnIds(_app)

    async def generate(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        try:
            for step in self.steps:
                yield step
        finally:
            self.closed += 1


Body = Callable[[Engine], AsyncIterator[bytes]]


async def served(
    engine: Engine,
    body: Body,
    *,
    kind: bytes = EVENTS,
    status: int = 200,
    asks: Any = ASKS,
    leaves_after: int | None = None,
) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Headers and pieces of an answer, of a server that sends each piece of ``body`` by itself."""

    sent: list[Any] = []

    async def send(message: Any) -> None:
        if leaves_after is not None and len(sent) > leaves_after:
            raise ConnectionResetError
        sent.append(message)

    app = SimpleNamespace(state=SimpleNamespace(engine_client=engine))
    scope = {"type": "http", "headers": asks, "app": app, "body": body, "kind": kind, "status": status}
    await engine.server(scope, None, send)
    return dict(sent[0]["headers"]), [message.get("body", b"") for message in sent[1:]]


async def told(engine: Engine) -> AsyncIterator[bytes]:
    """An event for each step of the engine, and one when it has ended."""
    async for _ in engine.generate():
        yield b"data: {}\n\n"
    yield b"data: [DONE]\n\n"


def whole(content: bytes) -> Body:
    async def body(engine: Engine) -> AsyncIterator[bytes]:
        async for _ in engine.generate():
            pass
        yield content

    return body


async def test_a_stream_has_the_ids_of_each_step_in_front_of_its_event() -> None:
    engine = Engine(output([1, 2], [3]), output([1, 2], [4, 5]))
    headers, pieces = await served(engine, told)
    assert headers[b"cwm-token-ids"] == b"1"
    assert pieces == [
        b': cwm-token-ids {"prompt_token_ids":[1,2],"token_ids":[3]}\n\ndata: {}\n\n',
        b': cwm-token-ids {"token_ids":[4,5]}\n\ndata: {}\n\n',
        b"data: [DONE]\n\n",
        b"",
    ]


async def test_ids_without_an_event_of_their_own_stand_before_the_next_one() -> None:
    async def body(engine: Engine) -> AsyncIterator[bytes]:
        steps = engine.generate()
        await anext(steps)
        await anext(steps)
        yield b"data: {}\n\n"

    _, pieces = await served(Engine(output([1], [2]), output([1], [3])), body)
    assert pieces[0] == b': cwm-token-ids {"prompt_token_ids":[1],"token_ids":[2,3]}\n\ndata: {}\n\n'


async def test_a_body_begins_with_the_ids_and_is_as_long_as_it_says() -> None:
    headers, pieces = await served(Engine(output([1], [2]), output([1], [3])), whole(b'{"a":1}'), kind=JSON)
    assert json.loads(b"".join(pieces)) == {"prompt_token_ids": [1], "token_ids": [2, 3], "a": 1}
    assert headers[b"content-length"] == b"%d" % len(b"".join(pieces))


async def test_an_answer_that_the_engine_broke_off_says_so() -> None:
    last = output([1], [3])
    last.outputs[0].finish_reason = "abort"
    _, pieces = await served(Engine(output([1], [2]), last), told)
    assert pieces[1] == b': cwm-token-ids {"token_ids":[3],"aborted":true}\n\ndata: {}\n\n'
    _, pieces = await served(Engine(last), whole(b'{"a":1}'), kind=JSON)
    assert b"".join(pieces) == b'{"prompt_token_ids":[1],"token_ids":[3],"aborted":true,"a":1}'


async def test_an_empty_object_stays_valid() -> None:
    _, pieces = await served(Engine(output([1], [2])), whole(b"{}"), kind=JSON)
    assert json.loads(b"".join(pieces)) == {"prompt_token_ids": [1], "token_ids": [2]}


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [(b'{"error":{}}', JSON, 400), (b"[1]", JSON, 200), (b"plain", b"text/plain", 200), (b"", JSON, 200)],
)
async def test_nothing_is_put_into_what_is_no_answer(content: bytes, kind: bytes, status: int) -> None:
    _, pieces = await served(Engine(output([1], [2])), whole(content), kind=kind, status=status)
    assert b"".join(pieces) == content


async def test_of_several_answers_the_first_counts() -> None:
    _, pieces = await served(Engine(output([1], [2], [7]), output(None, [], [8])), whole(b"{}"), kind=JSON)
    assert json.loads(b"".join(pieces)) == {"prompt_token_ids": [1], "token_ids": [2]}


async def test_of_several_prompts_the_last_counts() -> None:
    async def body(engine: Engine) -> AsyncIterator[bytes]:
        for prompt in (1, 2):
            engine.steps = (output([prompt], [prompt + 10]),)
            async for _ in engine.generate():
                pass
        yield b"{}"

    _, pieces = await served(Engine(), body, kind=JSON)
    assert json.loads(b"".join(pieces)) == {"prompt_token_ids": [2], "token_ids": [12]}


async def test_who_does_not_ask_gets_the_answer_as_it_is() -> None:
    headers, pieces = await served(Engine(output([1], [2])), told, asks=[])
    assert b"cwm-token-ids" not in headers
    assert pieces == [b"data: {}\n\n", b"data: [DONE]\n\n", b""]


async def test_requests_at_once_have_their_own_ids() -> None:
    engine = Engine(output([1], [2]))

    async def ask(number: int) -> bytes:
        async def body(engine: Engine) -> AsyncIterator[bytes]:
            await asyncio.sleep(0)
            engine.steps = (output([number], [number]),)
            async for _ in engine.generate():
                await asyncio.sleep(0)
            yield b"{}"

        _, pieces = await served(engine, body, kind=JSON)
        return b"".join(pieces)

    answers = await asyncio.gather(*(ask(number) for number in range(5)))
    for number, answer in enumerate(answers):
        ids = json.loads(answer)
        assert ids["prompt_token_ids"] == ids["token_ids"] != [], number


def test_a_client_that_leaves_ends_the_generation() -> None:
    engine = Engine(*(output([1], [number]) for number in range(5)))
    with pytest.raises(ConnectionResetError):
        # Its end closes the generators that nobody reads any more.
        asyncio.run(served(engine, told, leaves_after=1))
    assert engine.closed == 1
