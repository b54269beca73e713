"""Bad requests, clients that leave and an engine that dies, on each protocol: the engine lives, and the tree is right."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

import httpx2
import pytest

from tests.live.agents.protocols import (
    CHAT,
    MESSAGES,
    PROTOCOLS,
    RESPONSES,
    Protocol,
    Question,
    computed,
    recorded,
    rendered,
    require_refused,
    user,
)
from tests.live.engine import LiveEngine
from tests.live.talk import Talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

BLOCK: Final = 64
MOMENTS: Final = 12
"""In a prefill, a load and a stream, on each of three protocols: a hundred in all."""
GOOD: Final = Question((user("Say hello."),), max_tokens=4)
LONG_ANSWER: Final = 120
"""Tokens: still under way when the engine is killed."""
INVITATIONS: Final = (
    "Count to one thousand.",
    "Repeat what I said, room by room.",
    "Write a long story about each of these rooms.",
    "List every room again, with its number.",
    "Explain at length why the rooms are empty.",
)
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)


def bad(protocol: Protocol, model: str) -> dict[str, bytes]:
    """Requests that no engine can answer."""
    good = protocol.body(model, GOOD)
    said, limit = protocol.messages, protocol.limit

    def message(content: Any, role: Any = "user") -> bytes:
        return json.dumps({**good, said: [{"role": role, "content": content}]}).encode()

    def other(**fields: Any) -> bytes:
        return json.dumps({**good, **fields}).encode()

    requests = {
        "no body": b"",
        "no JSON": b"{",
        "a list": b"[]",
        "no UTF-8": b'{"model": "\xff"}',
        "nested too deeply": b'{"model":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "a model that is a number": other(model=5),
        "a model that is not served": other(model="nobody"),
        "messages that are a number": other(**{said: 5}),
        "messages that are null": other(**{said: None}),
        "no messages": other(**{said: []}),
        "a message that is a number": other(**{said: [5]}),
        "a message without a role": other(**{said: [{"content": "hey"}]}),
        "an unknown role": message("hey", role="wizard"),
        "content that is a number": message(5),
        "content that is null": message(None),
        "an unknown block": message([{"type": "hologram", "text": "hey"}]),
        "a block without a type": message([{"text": "hey"}]),
        "too long": message("word " * 20_000),
        "a limit of nothing": other(**{limit: 0}),
        "a limit below nothing": other(**{limit: -5}),
        "a limit that is a word": other(**{limit: "many"}),
        "a temperature that is a word": other(temperature="hot"),
        "a stream that is a word": other(stream="perhaps"),
        "tools that are a number": other(tools=5),
        "a tool without a name": other(tools=[{}]),
        "the engine's own field": other(cache_salt="mine"),
        "an id of a session that cannot be": other(),
    }
    if protocol is CHAT:
        # A chat template may know others.
        del requests["an unknown role"]
    return requests


@each_protocol
async def test_what_cannot_be_answered_is_refused_in_the_protocols_shape_and_leaves_no_turn(
    engine: LiveEngine, agent: Talk, protocol: Protocol
) -> None:
    session = f"bad-{uuid4().hex[:10]}"
    url, headers = f"{agent.url}{protocol.path}", {"CWM-Session-Id": session}
    restarts = engine.restarts("vllm")
    good = protocol.body(agent.model, GOOD)
    (await agent.http.post(url, json=good, headers=headers)).raise_for_status()

    for what, body in bad(protocol, agent.model).items():
        named = {"CWM-Session-Id": "not/an id"} if "session" in what else headers
        answer = await agent.http.post(
            url, content=body, headers={"content-type": "application/json", **named}
        )
        require_refused(protocol, answer, what)

    (await agent.http.post(url, json=good, headers=headers)).raise_for_status()
    log = (await agent.tool("turn_log", session_id=session))["turns"]
    assert [turn["state"] for turn in log] == ["ended", "ended"]
    assert engine.restarts("vllm") == restarts


def moments(count: int) -> Iterator[float]:
    """So many fractions of 1, spread evenly."""
    yield from ((number + 0.5) / count for number in range(count))


class Leaver:
    """A client that asks in a session of its own, and leaves."""

    def __init__(self, engine: LiveEngine, agent: Talk, protocol: Protocol) -> None:
        self._engine, self._agent, self._protocol = engine, agent, protocol
        self.session = f"leaves-{uuid4().hex[:10]}"
        self.asked = 0

    async def leaves_after(self, seconds: float, question: Question) -> None:
        asking = asyncio.create_task(self.asks(question))
        await asyncio.wait({asking}, timeout=seconds)
        asking.cancel()
        await asyncio.wait({asking})

    async def asks(self, question: Question, events: int | None = None) -> float:
        """Read the answer, or so many pieces of its text, and say how long it took to begin."""
        loop = asyncio.get_running_loop()
        begun, first, pieces = loop.time(), 0.0, 0
        self.asked += 1
        body = self._protocol.body(self._agent.model, question)
        async with (
            httpx2.AsyncClient(base_url=self._agent.url, timeout=300, trust_env=False) as http,
            http.stream(
                "POST", self._protocol.path, json=body, headers={"CWM-Session-Id": self.session}
            ) as answer,
        ):
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if self._protocol.said in line:
                    first = first or loop.time() - begun
                    pieces += 1
                    if pieces == events:
                        break
        return first

    async def turns(self) -> list[dict[str, Any]]:
        """The turns of its session, the newest first, when none is in flight any more."""
        async with asyncio.timeout(120):
            while True:
                turns = await self._log()
                if all(turn["state"] == "ended" for turn in turns):
                    return turns
                await asyncio.sleep(0.1)

    async def _log(self) -> list[dict[str, Any]]:
        turns: list[dict[str, Any]] = []
        more: dict[str, Any] = {"next_before": None}
        while "next_before" in more:
            before = {} if more["next_before"] is None else {"before": more["next_before"]}
            more = await self._agent.tool("turn_log", session_id=self.session, limit=20, **before)
            turns += more["turns"]
        return turns


def long(text: str) -> Question:
    """A prompt whose prefill takes a while, and that begins like no other."""
    rooms = " ".join(f"Room {number} is empty." for number in range(40))
    return Question((user(f"{text} {rooms}"),), max_tokens=40, stream=True, endless=True)


@each_protocol
async def test_a_client_may_leave_at_any_moment(engine: LiveEngine, agent: Talk, protocol: Protocol) -> None:
    restarts = engine.restarts("vllm")
    leaver = Leaver(engine, agent, protocol)

    prefill_seconds = await leaver.asks(long(uuid4().hex), events=1)
    for moment in moments(MOMENTS):
        await leaver.leaves_after(moment * prefill_seconds, long(uuid4().hex))

    known = long(uuid4().hex)
    await leaver.asks(known, events=1)
    await leaver.turns()
    await engine.forget_gpu_cache()
    load_seconds = await leaver.asks(known, events=1)
    for moment in moments(MOMENTS):
        await engine.forget_gpu_cache()
        await leaver.leaves_after(moment * load_seconds, known)

    before = len(await leaver.turns())
    for number in range(MOMENTS):
        await leaver.asks(
            Question((user(f"Count from {number}."),), max_tokens=60, stream=True, endless=True), number + 1
        )

    turns = await leaver.turns()
    assert leaver.asked > 3 * MOMENTS
    assert len(turns) == before + MOMENTS
    assert engine.restarts("vllm") == restarts
    last = Question((user("Say hello."),), max_tokens=8, stream=True)
    await leaver.asks(last)
    for turn in (await leaver.turns())[::MOMENTS]:
        shown = await agent.tool("turn_show", turn=turn["id"])
        said = [message for message in shown["messages"] if message["role"] == "user"]
        prompt, ids = await recorded(agent, turn=turn["id"])
        assert prompt == await rendered(engine, protocol, Question(said))
        assert ids == await computed(engine, prompt, Question(said, len(ids), endless=True))


async def inviting(agent: Talk, protocol: Protocol, *messages: Mapping[str, Any]) -> Mapping[str, Any]:
    """What makes the model go on by itself: Messages, unlike the others, cannot be asked to."""
    if protocol is not MESSAGES:
        return user(INVITATIONS[0])
    lengths = dict.fromkeys(INVITATIONS, 0)
    for text in INVITATIONS:
        body = protocol.body(agent.model, Question((*messages, user(text)), LONG_ANSWER))
        answer = await agent.http.post(
            f"{agent.url}{protocol.path}", json=body, headers={"CWM-Capture": "off"}
        )
        lengths[text] = answer.raise_for_status().json()["usage"]["output_tokens"]
        if lengths[text] == LONG_ANSWER:
            break
    return user(max(INVITATIONS, key=lambda text: lengths[text]))


def _end(engine: LiveEngine, how: signal.Signals) -> None:
    """As a crash of everything, or as an operator ends vLLM."""
    if how is signal.SIGKILL:
        engine.kill("vllm")
        engine.kill("lmcache")
    else:
        os.kill(min(engine.pids("vllm")), how)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_an_engine_that_dies_ends_every_stream_in_its_protocols_way_and_every_conversation_goes_on(
    engine: LiveEngine, agent: Talk, how: signal.Signals
) -> None:
    opening = user(" ".join(f"Room {number} is empty." for number in range(60)))
    sessions = {protocol.name: f"dies-{uuid4().hex[:10]}" for protocol in PROTOCOLS}
    counting: dict[str, Question] = {}
    windows: dict[str, int] = {}
    speaking = {protocol.name: asyncio.Event() for protocol in PROTOCOLS}

    async def asks(protocol: Protocol, question: Question) -> dict[str, Any]:
        """The turn that it became."""
        session = sessions[protocol.name]
        body, headers = protocol.body(agent.model, question), {"CWM-Session-Id": session}
        answer = await agent.http.post(f"{agent.url}{protocol.path}", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return dict(await agent.tool("turn_show", session_id=session))

    async def listens(protocol: Protocol) -> list[str]:
        body = protocol.body(agent.model, counting[protocol.name])
        headers = {"CWM-Session-Id": sessions[protocol.name]}
        lines = []
        async with agent.http.stream(
            "POST", f"{agent.url}{protocol.path}", json=body, headers=headers
        ) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
                if sum(protocol.said in line for line in lines) == 2:
                    speaking[protocol.name].set()
        return [line for line in lines if line]

    for protocol in PROTOCOLS:
        session = sessions[protocol.name]
        shown = await asks(protocol, Question((opening,), max_tokens=8))
        last = shown["messages"][-1]
        messages = (opening, last, await inviting(agent, protocol, opening, last))
        counting[protocol.name] = Question(messages, max_tokens=2000, stream=True, endless=True)
        window = await agent.tool("window_freeze", session_id=session, window_name=session, keep_session=True)
        windows[protocol.name] = window["token_count"]

    # The last is the one that cannot be asked to go on.
    listening = []
    async with asyncio.timeout(120):
        for protocol in (CHAT, RESPONSES, MESSAGES):
            listening.append((protocol, asyncio.create_task(listens(protocol))))
            await speaking[protocol.name].wait()
    _end(engine, how)
    streams = [(protocol, await task) for protocol, task in listening]
    refusals = [
        (
            protocol,
            await agent.http.post(f"{agent.url}{protocol.path}", json=protocol.body(agent.model, GOOD)),
        )
        for protocol in PROTOCOLS
    ]
    engine.wait_ready()
    for protocol, lines in streams:
        # What an engine itself says of its end has [DONE] behind it.
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
        assert protocol.error_keys <= json.loads(events[-1]).keys(), protocol.name
    for protocol, refusal in refusals:
        assert refusal.status_code in {503, 529}, refusal.text
        assert protocol.error_keys <= refusal.json().keys()

    for protocol in PROTOCOLS:
        session, question = sessions[protocol.name], counting[protocol.name]
        prompt, ids = await recorded(agent, session_id=session)
        assert prompt == await rendered(engine, protocol, question)
        assert ids
        assert ids == await computed(engine, prompt, Question(question.messages, len(ids), endless=True))
        shown = await agent.tool("turn_show", session_id=session)
        after = await asks(
            protocol, Question((*question.messages, shown["messages"][-1], user("Go on.")), max_tokens=4)
        )
        # Nobody thawed it: the engine loads what was frozen while it admits the request.
        assert after["turn"]["cached_tokens"] >= windows[protocol.name] // BLOCK * BLOCK
        log = (await agent.tool("turn_log", session_id=session))["turns"]
        assert [turn["relation"] for turn in log] == ["continues", "continues", "begins"]
