"""Clients that go away: what they asked for ends as early as the engine can bear it, and what it computed is kept."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.adapters.vllm.fake_vllm import MODEL, Behaviour, FakeVllm
from tests.eventually import eventually
from tests.transport.llm.gateway import TENANT, Gateway

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
# Many times over what two sockets and the pipe between them hold.
ENDLESS_BYTES = 32 * 1024 * 1024
BOTH = pytest.mark.parametrize("headers", [{}, {"CWM-Session-Id": "s1"}])


def ask(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hey"}], **more}


async def leave_while_it_waits(
    cwm: Gateway, vllm: FakeVllm, headers: dict[str, str], *, stream: bool
) -> None:
    sending = asyncio.create_task(cwm.client.post(CHAT, json=ask(stream=stream), headers=headers))
    async with asyncio.timeout(10):
        await vllm.waiting.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def all_ended(cwm: Gateway) -> None:
    """Of itself: what is broken off after that would be missing in its session."""
    await cwm.pass_through.drain(20)


@BOTH
async def test_a_client_that_leaves_before_the_first_token_leaves_the_engine_undisturbed(
    cwm: Gateway, vllm: FakeVllm, headers: dict[str, str]
) -> None:
    vllm.behaviour = Behaviour.WAITS_BEFORE_FIRST_TOKEN
    await leave_while_it_waits(cwm, vllm, headers, stream=True)
    assert not vllm.turns[0].left.is_set()
    vllm.release.set()
    await all_ended(cwm)
    if headers:
        assert (await cwm.tokens("s1"))[:3] == tuple(b"hey")


@BOTH
async def test_a_client_that_leaves_a_whole_answer_has_it_finished_and_recorded(
    cwm: Gateway, vllm: FakeVllm, headers: dict[str, str]
) -> None:
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    await leave_while_it_waits(cwm, vllm, headers, stream=False)
    assert not vllm.turns[0].left.is_set()
    vllm.release.set()
    await all_ended(cwm)
    assert not vllm.turns[0].left.is_set()
    if headers:
        assert await cwm.tokens("s1") == (*b"hey", *range(1000, 1008))


@BOTH
async def test_a_client_that_leaves_an_endless_stream_ends_it_and_what_came_is_recorded(
    cwm: Gateway, vllm: FakeVllm, headers: dict[str, str]
) -> None:
    vllm.behaviour = Behaviour.FLOODS
    async with cwm.client.stream("POST", CHAT, json=ask(stream=True), headers=headers) as answer:
        assert answer.status_code == 200
        await anext(answer.aiter_raw())
    await all_ended(cwm)
    async with asyncio.timeout(10):
        await vllm.turns[0].left.wait()
    if headers:
        assert (await cwm.tokens("s1"))[:5] == (*b"hey", 1000, 1001)
    assert not cwm.turns.in_flight(TENANT, "s1")


@pytest.fixture
def hardened(vllm: FakeVllm) -> FakeVllm:
    """A vLLM with CWM's connector, which may be aborted at any moment."""
    vllm.weights = "w-1"
    return vllm


@pytest.mark.parametrize("stream", [True, False])
async def test_what_nothing_records_ends_with_its_client_where_the_engine_survives_that(
    cwm: Gateway, hardened: FakeVllm, stream: bool
) -> None:
    waits = Behaviour.WAITS_BEFORE_FIRST_TOKEN if stream else Behaviour.WAITS_BEFORE_ANSWERING
    hardened.behaviour = waits
    await leave_while_it_waits(cwm, hardened, {}, stream=stream)
    async with asyncio.timeout(10):
        await hardened.turns[0].left.wait()
    await all_ended(cwm)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_a_whole_answer_whose_client_left_is_aborted_and_what_came_is_recorded(
    cwm: Gateway, hardened: FakeVllm, path: str
) -> None:
    hardened.behaviour, hardened.aborts = Behaviour.WAITS_BEFORE_ANSWERING, True
    body = ask() if path == CHAT else {"model": MODEL, "prompt": "hey"}
    headers = {"CWM-Session-Id": "s1", "X-Request-Id": "mine"}
    sending = asyncio.create_task(cwm.client.post(path, json=body, headers=headers))
    async with asyncio.timeout(10):
        await hardened.waiting.wait()
    sending.cancel()
    await all_ended(cwm)
    assert not hardened.turns[0].left.is_set()
    request_id = hardened.turns[0].headers["x-request-id"]
    assert request_id.startswith("mine-"), "and nobody else's is the same"
    assert hardened.aborted == [f"chatcmpl-{request_id}" if path == CHAT else f"cmpl-{request_id}-0"]
    assert await cwm.tokens("s1") == (*b"hey", 1000, 1001)


async def test_a_recorded_answer_that_the_engine_cannot_abort_is_finished(
    cwm: Gateway, hardened: FakeVllm
) -> None:
    hardened.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    await leave_while_it_waits(cwm, hardened, {"CWM-Session-Id": "s1"}, stream=False)
    await eventually(lambda: any("abort" in seen.target for seen in hardened.seen))
    hardened.release.set()
    await all_ended(cwm)
    assert await cwm.tokens("s1") == (*b"hey", *range(1000, 1008))


async def test_a_client_that_does_not_read_holds_up_the_engine_and_not_the_memory_or_the_others(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.FLOODS
    with socket.create_connection(cwm.url.removeprefix("http://").split(":")) as lazy:  # type: ignore[arg-type]
        body = b'{"model":"fake","prompt":"hey","stream":true}'
        lazy.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        async with asyncio.timeout(30):
            await vllm.flooding.wait()
            vllm.behaviour = Behaviour.NORMAL
            quiet = 0
            while quiet < 20 and (before := vllm.turns[0].written) < ENDLESS_BYTES:
                assert (await cwm.client.post(CHAT, json=ask())).status_code == 200
                quiet = quiet + 1 if vllm.turns[0].written == before else 0
        assert vllm.turns[0].written < ENDLESS_BYTES
    await all_ended(cwm)


async def test_a_client_that_leaves_while_sending_is_forgotten(cwm: Gateway, vllm: FakeVllm) -> None:
    reader, writer = await asyncio.open_connection(*cwm.url.removeprefix("http://").split(":"))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    del reader
    assert (await cwm.client.post(CHAT, json=ask())).status_code == 200
    assert len(vllm.turns) == 1


async def test_a_stopping_gateway_lets_a_turn_finish(cwm: Gateway, vllm: FakeVllm) -> None:
    vllm.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN
    headers = {"CWM-Session-Id": "s1"}
    sending = asyncio.create_task(cwm.client.post(CHAT, json=ask(stream=True), headers=headers))
    await vllm.waiting.wait()
    draining = asyncio.create_task(cwm.pass_through.drain(30))
    vllm.release.set()
    await draining
    assert (await sending).text.endswith("data: [DONE]\n\n")
    assert await cwm.tokens("s1") == (*b"hey", *range(1000, 1008))


async def test_a_turn_that_outlasts_the_drain_is_broken_off_and_what_came_is_recorded(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN
    headers = {"CWM-Session-Id": "s1"}
    sending = asyncio.create_task(cwm.client.post(CHAT, json=ask(stream=True), headers=headers))
    await vllm.waiting.wait()
    await cwm.pass_through.drain(0)
    answer = await sending
    assert '"CWM-5001"' in answer.text
    assert await cwm.tokens("s1") == (*b"hey", 1000)
