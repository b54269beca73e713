"""However an answer ends, what is recorded is what the engine computed, to the token, on each protocol."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import httpx2
import pytest

from tests.live.agents.protocols import (
    PROTOCOLS,
    Protocol,
    Question,
    computed,
    recorded,
    rendered,
    user,
)
from tests.live.engine import LiveEngine
from tests.live.talk import Talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

HEY = (user("Say hello to the sea, and to the ships."),)
ENDINGS = {
    "by itself": Question(HEY, max_tokens=200),
    "at its limit": Question(HEY, max_tokens=9),
    "after one token": Question(HEY, max_tokens=1),
    "at a stop sequence": Question(HEY, max_tokens=200, stop=("the",)),
    "inside a tool call": Question(HEY, max_tokens=12, tool=True),
    "after a tool call": Question(HEY, max_tokens=200, tool=True),
}
LONG = Question((user("Count to one thousand, one number after the other."),), max_tokens=1500)

each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def in_session(session: str) -> dict[str, str]:
    return {"CWM-Session-Id": session}


@each_protocol
@both
@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_answer_is_recorded_to_the_token_however_it_ends(
    engine: LiveEngine, agent: Talk, protocol: Protocol, ending: str, *, stream: bool
) -> None:
    asked = ENDINGS[ending]
    question = Question(asked.messages, asked.max_tokens, asked.stop, asked.tool, stream)
    session = f"ids-{uuid4().hex[:10]}"
    body = protocol.body(agent.model, question)
    answer = await agent.http.post(f"{agent.url}{protocol.path}", json=body, headers=in_session(session))
    assert answer.status_code == 200, answer.text

    prompt, ids = await recorded(agent, session_id=session)
    assert prompt == await rendered(engine, protocol, question)
    assert ids == await computed(engine, prompt, question)
    if not stream:
        usage = answer.json()["usage"]
        assert usage.get("output_tokens", usage.get("completion_tokens")) == len(ids)


@each_protocol
@both
async def test_a_client_that_leaves_leaves_the_ids_that_were_computed(
    engine: LiveEngine, agent: Talk, protocol: Protocol, *, stream: bool
) -> None:
    session = f"left-{uuid4().hex[:10]}"
    body = protocol.body(agent.model, Question(LONG.messages, LONG.max_tokens, stream=stream, endless=True))
    async with httpx2.AsyncClient(base_url=agent.url, timeout=300, trust_env=False) as http:
        if stream:
            async with http.stream("POST", protocol.path, json=body, headers=in_session(session)) as answer:
                pieces = 0
                async for line in answer.aiter_lines():
                    pieces += protocol.said in line
                    if pieces == 5:
                        break
        else:
            asking = asyncio.create_task(http.post(protocol.path, json=body, headers=in_session(session)))
            await generating(engine)
            asking.cancel()
            await asyncio.wait({asking})

    # A freeze waits for a turn in flight.
    await agent.tool("window_freeze", session_id=session, window_name=session, keep_session=True)
    prompt, ids = await recorded(agent, session_id=session)
    assert prompt == await rendered(engine, protocol, LONG)
    assert 0 < len(ids) < LONG.max_tokens
    assert ids == await computed(engine, prompt, Question(LONG.messages, len(ids), endless=True))


async def generating(engine: LiveEngine) -> None:
    """Until the engine has computed tokens of a new answer."""
    async with httpx2.AsyncClient(base_url=engine.vllm_url, trust_env=False) as http, asyncio.timeout(60):
        before = await _generated(http)
        while await _generated(http) < before + 5:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)


async def _generated(http: httpx2.AsyncClient) -> float:
    metrics = (await http.get("/metrics")).text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        if line.startswith("vllm:generation_tokens_total{")
    )
