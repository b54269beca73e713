"""Anthropic's SDK through a gateway: conversations with tools, refusals, counts and models are as the API's own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import anthropic
import httpx2
import pytest
import yaml

from tests.live.agents.protocols import MESSAGES, Question, recorded, rendered
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import Talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

ALIAS = "claude-sonnet-5"
PATH = "/v1/messages"
# The SDK has no field for it any more.
GREEDY = {"temperature": 0}
HEY: Any = {"role": "user", "content": "Say hello to the sea."}
TOOL: Any = {
    "name": "open_door",
    "description": "Opens the door.",
    "strict": True,
    "input_schema": {
        "type": "object",
        "properties": {"code": {"type": "string", "enum": ["4711"]}},
        "required": ["code"],
        "additionalProperties": False,
    },
}
FORCED: Any = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "open_door"}}
BOTH = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def gateway(engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    config = folder / "cwm.yaml"
    config.write_text(yaml.safe_dump({"models": {"aliases": {"claude-*": engine.model_name}}}))
    with served(engine, folder / "cwm.db", "acme", CWM_CONFIG=str(config)) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: LiveGateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key="none", timeout=300, max_retries=0
    ) as client:
        yield client


async def say(
    client: anthropic.AsyncAnthropic, session: str, *messages: Any, stream: bool = False, **more: Any
) -> anthropic.types.Message:
    """The answer, as the SDK reads or joins it, in the session that the client names as Claude Code does."""
    request: dict[str, Any] = {
        "model": ALIAS,
        "max_tokens": 24,
        "messages": [*messages],
        "extra_body": GREEDY,
        **more,
    }
    headers = {"X-Claude-Code-Session-Id": session}
    if not stream:
        answer: anthropic.types.Message = await client.messages.create(**request, extra_headers=headers)
        return answer
    async with client.messages.stream(**request, extra_headers=headers) as events:
        return await events.get_final_message()


@BOTH
async def test_the_next_turn_extends_the_last_through_a_tool_call(
    agent: Talk, client: anthropic.AsyncAnthropic, *, stream: bool
) -> None:
    session = f"m-{uuid4().hex[:10]}"
    called = await say(client, session, HEY, stream=stream, max_tokens=64, **FORCED)
    block = called.content[0]
    assert block.type == "tool_use"
    assert block.input == {"code": "4711"}
    prompt, _ = await recorded(agent, session_id=session)
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "It is open."}
    said = [HEY, {"role": "assistant", "content": [block.to_dict()]}, {"role": "user", "content": [result]}]
    await say(client, session, *said, stream=stream, tools=[TOOL])
    later, _ = await recorded(agent, session_id=session)
    assert later[: len(prompt)] == prompt
    log = (await agent.tool("turn_log", session_id=session))["turns"]
    assert [turn.get("diverged_at") for turn in log] == [None, None]
    shown = await agent.tool("turn_show", session_id=session)
    roles = [message["role"] for message in shown["messages"]]
    assert [role for role in roles if role != "system"] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(shown["messages"][-3]["tool_calls"][0]["function"]["arguments"]) == {"code": "4711"}


@BOTH
async def test_an_answer_goes_on_with_its_beginning(
    agent: Talk, client: anthropic.AsyncAnthropic, engine: LiveEngine, *, stream: bool
) -> None:
    session, begun = f"m-{uuid4().hex[:10]}", {"role": "assistant", "content": "The sea says"}
    await say(client, session, HEY, begun, stream=stream)
    prompt, _ = await recorded(agent, session_id=session)
    straight = {
        "model": engine.model_name,
        "messages": [HEY, begun],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    async with httpx2.AsyncClient(base_url=engine.vllm_url, timeout=300, trust_env=False) as http:
        answer = await http.post("/v1/chat/completions/render", json=straight)
    assert prompt == answer.raise_for_status().json()["token_ids"]
    counted = await client.messages.count_tokens(model=ALIAS, messages=[HEY, begun])  # type: ignore[list-item]
    assert counted.input_tokens == len(prompt)


async def test_a_model_without_thoughts_answers_a_request_with_a_budget_for_them(
    client: anthropic.AsyncAnthropic,
) -> None:
    budget = {"type": "enabled", "budget_tokens": 1024}
    answer = await say(client, f"m-{uuid4().hex[:10]}", HEY, max_tokens=1100, thinking=budget)
    assert [block.type for block in answer.content] == ["text"]


@BOTH
async def test_an_answer_is_the_engines_own_apart_from_ids_and_the_models_name(
    engine: LiveEngine, gateway: LiveGateway, *, stream: bool
) -> None:
    async def events(url: str, model: str) -> list[Any]:
        body = {
            "model": model,
            "max_tokens": 24,
            "temperature": 0,
            "messages": [HEY],
            "stream": stream,
            **FORCED,
        }
        async with httpx2.AsyncClient(base_url=url, timeout=300, trust_env=False) as http:
            answer = (await http.post(PATH, json=body)).raise_for_status()
        lines = [
            line for line in answer.text.split("\n") if not stream or line.startswith(("data", ":", "event"))
        ]
        return [
            _without_ids(json.loads(line.removeprefix("data: "))) if "{" in line else line for line in lines
        ]

    assert await events(gateway.url, ALIAS) == await events(engine.vllm_url, engine.model_name)


async def test_counts_models_and_refusals_are_those_of_the_api(
    engine: LiveEngine, client: anthropic.AsyncAnthropic
) -> None:
    count = await client.messages.count_tokens(model=ALIAS, messages=[HEY])
    prompt = await rendered(engine, MESSAGES, Question((HEY,)))
    assert count.input_tokens in {len(prompt), len(prompt) + 1}
    assert [model.id async for model in client.models.list()] == [engine.model_name]
    assert (await client.models.retrieve(ALIAS)).id == ALIAS
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        await say(client, "long", {"role": "user", "content": "word " * 20_000})
    with pytest.raises(anthropic.NotFoundError, match="model: nobody"):
        await client.messages.create(model="nobody", max_tokens=1, messages=[HEY])
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.messages.create(model=ALIAS, max_tokens=0, messages=[HEY])
    assert refused.value.request_id


async def test_new_messages_alone_continue_a_conversation(
    agent: Talk, client: anthropic.AsyncAnthropic
) -> None:
    session = f"m-{uuid4().hex[:10]}"
    await say(client, session, HEY)
    prompt, answer = await recorded(agent, session_id=session)
    await client.messages.create(
        model=ALIAS,
        max_tokens=4,
        messages=[{"role": "user", "content": "Again."}],
        extra_headers={"CWM-Continue": f"session:{session}"},
    )
    whole = [*prompt, *answer]
    longer, _ = await recorded(agent, session_id=session)
    assert longer[: len(whole)] == whole
    assert len(longer) > len(whole)


def _without_ids(event: dict[str, Any]) -> dict[str, Any]:
    """An event or a body without ids, which are random, the model's name, and what was cached."""
    for name in ("id", "model", "usage"):
        event.pop(name, None)
        event.get("message", {}).pop(name, None)
        event.get("content_block", {}).pop(name, None)
        for block in event.get("content", ()):
            block.pop(name, None)
    return event
