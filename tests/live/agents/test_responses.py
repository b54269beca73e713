"""OpenAI's Responses API with the real engine, as the openai SDK speaks it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import openai
import pytest

from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import Talk

pytestmark = pytest.mark.live

TOOL: Final[Any] = {
    "type": "function",
    "name": "look",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"where": {"enum": ["here", "there"]}},
        "required": ["where"],
        "additionalProperties": False,
    },
}


def sdk_of(gateway: LiveGateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", timeout=120, max_retries=0)


@pytest.fixture
async def client(gateway: LiveGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk_of(gateway) as sdk:
        yield sdk


async def ask(client: openai.AsyncOpenAI, session: str, *, stream: bool = False, **more: Any) -> Any:
    """A short greedy response in a session of this name."""
    fields: dict[str, Any] = {
        "max_output_tokens": 8,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
        **more,
    }
    headers = {"CWM-Session-Id": session} if session else {}
    if not stream:
        return await client.responses.create(extra_headers=headers, **fields)
    async with client.responses.stream(extra_headers=headers, **fields) as events:
        # Of one that was cut off, as this one is, the SDK gives no final response.
        *_, last = [event async for event in events]
        assert last.type == "response.incomplete"
        return last.response


def new_name(kind: str) -> str:
    return f"{kind}-{uuid4().hex[:10]}"


async def tokens(agent: Talk, session: str) -> list[int]:
    return list((await agent.tool("turn_show", session_id=session, include_tokens=True))["token_ids"])


async def test_a_chain_of_three_is_the_whole_conversation_sent_at_once_token_for_token(
    agent: Talk, client: openai.AsyncOpenAI
) -> None:
    session, whole, previous = new_name("chain"), list[Any](), None
    for number in range(3):
        said = {"role": "user", "content": f"Tell me of the number {number}."}
        fields: dict[str, Any] = {"model": agent.model, "instructions": f"Be kind, {number} times."}
        response = await ask(
            client, session, stream=number == 1, input=[said], previous_response_id=previous, **fields
        )
        apart = new_name("whole")
        await ask(client, apart, input=[*whole, said], **fields)
        assert await tokens(agent, session) == await tokens(agent, apart)
        assert response.previous_response_id == previous
        whole += [said, *(item.to_dict() for item in response.output)]
        previous = response.id
    listed: Any = client.responses.input_items.list(previous or "", order="asc")
    roles = [item.role async for item in listed]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


async def test_a_forced_call_is_recorded_and_answered(agent: Talk, client: openai.AsyncOpenAI) -> None:
    session = new_name("call")
    fields: dict[str, Any] = {
        "model": agent.model,
        "tools": [TOOL],
        "max_output_tokens": 60,
        "extra_body": {},
    }
    response = await ask(client, session, input="Where?", tool_choice="required", **fields)
    (call,) = response.output
    assert call.name == "look"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Nothing."}
    await ask(client, session, input=[output], previous_response_id=response.id, **fields)
    shown = await agent.tool("turn_show", session_id=session)
    messages = shown["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == call.call_id


async def test_a_response_is_found_after_a_restart_and_gone_on_from(
    engine: LiveEngine, tmp_path: Path
) -> None:
    database = tmp_path / "cwm.db"
    with served(engine, database, "restarted") as first:
        async with sdk_of(first) as client:
            response = await ask(client, "", model=first.model, input="Hello.")
    with served(engine, database, "restarted") as second:
        async with sdk_of(second) as client:
            assert (await client.responses.retrieve(response.id)).to_dict() == response.to_dict()
            on = await ask(client, "", model=second.model, input="On.", previous_response_id=response.id)
    assert on.usage.input_tokens > response.usage.total_tokens
