"""Messages that nobody means to send, on each protocol: what the engine answers is answered and recorded, and what it refuses is refused."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import uuid4

import httpx2
import pytest

from tests.live.agents.protocols import (
    PROTOCOLS,
    RESPONSES,
    Protocol,
    Question,
    computed,
    recorded,
    require_refused,
    user,
)
from tests.live.engine import LiveEngine
from tests.live.talk import Talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

HELLO: Final = "Say hello."
NUL: Final = "before\x00behind"


def odd(protocol: Protocol) -> dict[str, list[dict[str, Any]]]:
    """Conversations, by what is odd in them."""
    kind = "input_text" if protocol is RESPONSES else "text"

    def blocks(*texts: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": kind, "text": text} for text in texts]}

    return {
        "an empty content": [user("")],
        "no blocks": [blocks()],
        "an empty block": [blocks("")],
        "an empty block behind one": [blocks(HELLO, "")],
        "nothing but white space": [user(" \n\t ")],
        "an empty message behind one": [user(HELLO), user("")],
        "an empty answer": [user(HELLO), {"role": "assistant", "content": ""}, user(HELLO)],
        "a NUL": [user(NUL)],
        "a NUL in a block": [blocks(NUL)],
        "control characters": [user("\x01\x1b[2J\x7f\u202e\ufeff\uffff")],
        "an unknown field of a message": [{**user(HELLO), "frobnicate": NUL}],
    }


def said(message: dict[str, Any]) -> str:
    """The text of a recorded message."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def nothing_stays(agent: Talk, session: str) -> None:
    """The turn of a refused request is taken back behind the answer. TimeoutError where it is not."""
    async with asyncio.timeout(60):
        while (await agent.tool("turn_log", session_id=session))["turns"]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
async def test_what_is_odd_is_answered_and_recorded_or_refused_as_the_engine_does_it(
    engine: LiveEngine, agent: Talk, protocol: Protocol
) -> None:
    restarts, answered = engine.restarts("vllm"), set[str]()
    async with httpx2.AsyncClient(base_url=engine.vllm_url, timeout=300, trust_env=False) as vllm:
        for what, messages in odd(protocol).items():
            body = protocol.body(agent.model, Question(messages, max_tokens=4))
            straight = await vllm.post(protocol.path, json=body)
            session = f"odd-{uuid4().hex[:10]}"
            headers = {"CWM-Session-Id": session}
            answer = await agent.http.post(f"{agent.url}{protocol.path}", json=body, headers=headers)
            assert answer.status_code == straight.status_code, (what, answer.text)
            if answer.status_code != 200:
                require_refused(protocol, answer, what)
                await nothing_stays(agent, session)
                continue
            answered.add(what)
            log = (await agent.tool("turn_log", session_id=session))["turns"]
            assert [turn["state"] for turn in log] == ["ended"], what
            rendered = (await vllm.post(f"{protocol.path}/render", json=body)).raise_for_status().json()
            prompt, ids = await recorded(agent, session_id=session)
            assert prompt == (rendered if "token_ids" in rendered else rendered[0])["token_ids"], what
            assert ids == await computed(engine, prompt, Question((), len(ids), endless=True)), what
            shown = (await agent.tool("turn_show", session_id=session))["messages"]
            texts = [said(message) for message in messages]
            assert [said(message) for message in shown][: len(texts)] == texts, what
    assert {"an empty content", "a NUL", "a NUL in a block", "control characters"} <= answered
    assert engine.restarts("vllm") == restarts
