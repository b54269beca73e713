"""Anthropic's SDK through a gateway: what is recorded is what the engine computed, on every way an answer may end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import anthropic
import httpx2
import pytest
import yaml

from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine, running
from tests.live.talk import Talk, talk

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
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    with running(tmp_path_factory.mktemp("smollm2"), "smollm2-135m") as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    config = folder / "cwm.yaml"
    config.write_text(yaml.safe_dump({"models": {"aliases": {"claude-*": engine.model_name}}}))
    with served(engine, folder / "cwm.db", "acme", CWM_CONFIG=str(config)) as gateway:
        yield gateway


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client


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


async def recorded(agent: Talk, session: str) -> tuple[list[int], list[int]]:
    """The ids of the prompt and of the answer of a session's last turn."""
    shown = await agent.tool("turn_show", session_id=session, include_tokens=True)
    at = shown["turn"]["prompt_tokens"]
    return shown["token_ids"][:at], shown["token_ids"][at:]


async def truth(engine: LiveEngine, *messages: Any, **more: Any) -> tuple[list[int], list[int]]:
    """What the engine itself renders and computes, as a chat with nothing stored."""
    body = {"model": engine.model_name, "max_tokens": 24, "temperature": 0, "messages": [*messages], **more}
    async with httpx2.AsyncClient(base_url=engine.vllm_url, timeout=300, trust_env=False) as http:
        rendered = (await http.post(f"{PATH}/render", json=body)).raise_for_status().json()
        chat = {
            "model": engine.model_name,
            "prompt": rendered["token_ids"],
            "max_tokens": body["max_tokens"],
            "temperature": 0,
            "stop": more.get("stop_sequences"),
            "cache_salt": uuid4().hex,
            "return_token_ids": True,
        }
        computed = (await http.post("/v1/completions", json=chat)).raise_for_status().json()
    return rendered["token_ids"], computed["choices"][0]["token_ids"]


@BOTH
@pytest.mark.parametrize("more", [{}, {"stop_sequences": ["the"]}, {"max_tokens": 1}])
async def test_what_is_recorded_is_what_the_engine_computed(
    engine: LiveEngine, agent: Talk, client: anthropic.AsyncAnthropic, more: dict[str, Any], *, stream: bool
) -> None:
    session = f"m-{uuid4().hex[:10]}"
    answer = await say(client, session, HEY, stream=stream, **more)
    assert await recorded(agent, session) == await truth(engine, HEY, **more)
    assert answer.model == ALIAS
    assert answer.stop_reason in {"end_turn", "max_tokens", "stop_sequence"}
    usage = answer.usage
    prompt, new = await recorded(agent, session)
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) in {len(prompt), len(prompt) + 1}
    assert usage.output_tokens == len(new)


@BOTH
async def test_an_answer_that_ends_inside_a_tool_call_is_recorded_to_the_token(
    agent: Talk, client: anthropic.AsyncAnthropic, *, stream: bool
) -> None:
    session = f"m-{uuid4().hex[:10]}"
    answer = await say(client, session, HEY, stream=stream, max_tokens=6, **FORCED)
    _, new = await recorded(agent, session)
    assert (answer.stop_reason, answer.usage.output_tokens, len(new)) == ("max_tokens", 6, 6)


@BOTH
async def test_the_next_turn_extends_the_last_through_a_tool_call(
    agent: Talk, client: anthropic.AsyncAnthropic, *, stream: bool
) -> None:
    session = f"m-{uuid4().hex[:10]}"
    called = await say(client, session, HEY, stream=stream, max_tokens=64, **FORCED)
    block = called.content[0]
    assert block.type == "tool_use"
    assert block.input == {"code": "4711"}
    prompt, _ = await recorded(agent, session)
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "It is open."}
    said = [HEY, {"role": "assistant", "content": [block.to_dict()]}, {"role": "user", "content": [result]}]
    await say(client, session, *said, stream=stream, tools=[TOOL])
    later, _ = await recorded(agent, session)
    assert later[: len(prompt)] == prompt
    log = (await agent.tool("turn_log", session_id=session))["turns"]
    assert [turn.get("diverged_at") for turn in log] == [None, None]
    shown = await agent.tool("turn_show", session_id=session)
    roles = [message["role"] for message in shown["messages"]]
    assert [role for role in roles if role != "system"] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(shown["messages"][-3]["tool_calls"][0]["function"]["arguments"]) == {"code": "4711"}


async def test_a_client_that_leaves_a_stream_leaves_the_ids_that_came(
    engine: LiveEngine, agent: Talk, client: anthropic.AsyncAnthropic
) -> None:
    session = f"m-{uuid4().hex[:10]}"
    request: dict[str, Any] = {"model": ALIAS, "max_tokens": 400, "messages": [HEY], "extra_body": GREEDY}
    async with client.messages.stream(
        **request, extra_headers={"X-Claude-Code-Session-Id": session}
    ) as events:
        async for event in events:
            if event.type == "text":
                break

    # A freeze waits for a turn in flight.
    await agent.tool("window_freeze", session_id=session, window_name=session, keep_session=True)
    prompt, new = await recorded(agent, session)
    rendered, computed = await truth(engine, HEY, max_tokens=400)
    assert prompt == rendered
    assert 0 < len(new) <= len(computed)
    assert new == computed[: len(new)]


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
    prompt, _ = await truth(engine, HEY, max_tokens=1)
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
    prompt, answer = await recorded(agent, session)
    await client.messages.create(
        model=ALIAS,
        max_tokens=4,
        messages=[{"role": "user", "content": "Again."}],
        extra_headers={"CWM-Continue": f"session:{session}"},
    )
    whole = [*prompt, *answer]
    longer, _ = await recorded(agent, session)
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
