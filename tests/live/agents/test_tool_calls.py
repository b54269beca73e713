"""Agents that call tools, with the parsers that `cwm up` chooses by itself: a real small model, and an OpenAI client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import openai
import pytest

from cwm import shipped
from cwm.stack.environment import Pins, prepare_environment
from tests.live.conftest import LiveGateway
from tests.live.engine import LiveEngine, engine_home
from tests.live.talk import Talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

# Of three chunks and more, so that a window has blocks.
SECRET = "The code of the door is 4711. Do not forget it. " + " ".join(
    f"Room {number} is {colour}." for number, colour in enumerate(["red", "green", "blue", "white"] * 12)
)
QUESTION = "Open the door with its code."
TOOL = {
    "type": "function",
    "function": {
        "name": "open_door",
        "description": "Opens the door.",
        # Without it a forced call has a name and any JSON.
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "pattern": "^[0-9]{4}$"}},
            "required": ["code"],
            "additionalProperties": False,
        },
    },
}
FORCED: Any = {"type": "function", "function": {"name": "open_door"}}


@asynccontextmanager
async def sdk(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=300, max_retries=0) as client:
        yield client


async def asked(client: openai.AsyncOpenAI, model: str, messages: list[Any], **more: Any) -> Any:
    """The raw answer; ``headers`` and ``extra_body`` may be among ``more``."""
    return await client.chat.completions.with_raw_response.create(
        model=model, messages=messages, max_tokens=64, temperature=0, **more
    )


def deltas(chunks: list[Any]) -> list[Any]:
    """What the chunks say, without the ids of an answer and of its calls, which are random."""
    choices = [chunk.choices[0].to_dict(mode="json") for chunk in chunks if chunk.choices]
    for choice in choices:
        choice.pop("token_ids", None)
        for call in choice["delta"].get("tool_calls", ()):
            call.pop("id", None)
    return choices


async def test_a_client_that_never_saw_a_window_goes_on_from_it_with_a_tool_call(
    engine: LiveEngine, gateway: LiveGateway, agent: Talk
) -> None:
    session, model = f"door-{uuid4().hex[:10]}", gateway.model
    said = [{"role": "user", "content": SECRET}]
    async with sdk(gateway.url) as one:
        await asked(one, model, said, extra_headers={"CWM-Session-Id": session})
    await agent.tool("window_freeze", session_id=session, window_name=session)
    window = (await agent.tool("turn_show", window_name=session, include_tokens=True))["token_ids"]

    call: dict[str, Any] = {"tools": [TOOL], "tool_choice": FORCED}
    question = [{"role": "user", "content": QUESTION}]
    async with sdk(gateway.url) as other:
        raw = await asked(
            other, model, question, stream=True, extra_headers={"CWM-Continue": f"window:{session}"}, **call
        )
        chunks = [chunk async for chunk in raw.parse()]

    arguments = "".join(
        part.function.arguments or ""
        for chunk in chunks
        for choice in chunk.choices
        for part in choice.delta.tool_calls or ()
    )
    assert json.loads(arguments) == {"code": "4711"}
    recorded = await agent.tool("turn_show", turn=raw.headers["cwm-turn"], include_tokens=True)
    assert recorded["token_ids"][: len(window)] == window
    assert recorded["messages"][-1]["tool_calls"][0]["function"] == {
        "name": "open_door",
        "arguments": arguments,
    }

    # The engine's own answers to the same ids, with nothing stored.
    prompt = recorded["token_ids"][: recorded["turn"]["prompt_tokens"]]
    async with sdk(engine.vllm_url) as direct:

        async def computed(*, stream: bool, **more: Any) -> Any:
            ours = {"cache_salt": uuid4().hex, "kv_transfer_params": {"prompt_token_ids": prompt}, **more}
            return (await asked(direct, model, question, stream=stream, extra_body=ours, **call)).parse()

        whole = (await computed(stream=False, return_token_ids=True)).to_dict()
        own = [chunk async for chunk in await computed(stream=True)]
    assert recorded["token_ids"] == whole["prompt_token_ids"] + whole["choices"][0]["token_ids"]
    assert deltas(chunks) == deltas(own)


async def test_an_agent_that_offers_tools_is_served(gateway: LiveGateway) -> None:
    async with sdk(gateway.url) as client:
        answer = await asked(client, gateway.model, [{"role": "user", "content": "Say hello."}], tools=[TOOL])
    assert answer.parse().choices[0].finish_reason in {"stop", "length", "tool_calls"}


async def test_the_pinned_vllm_has_every_parser_that_a_model_may_get() -> None:
    environment = await prepare_environment(engine_home(), Pins.for_device("cpu"), print)
    script = (
        "from cwm_engine.parsers import _FAMILIES\n"
        "from cwm_engine.serve_vllm import names_of\n"
        "print({each.tool for each in _FAMILIES} - {*names_of('tool')},"
        " {each.reasoning for each in _FAMILIES} - {*names_of('reasoning'), ''})"
    )
    process = await asyncio.create_subprocess_exec(
        environment.python,
        "-c",
        script,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(shipped.folder("engine"))},
    )
    output, _ = await process.communicate()
    assert output.decode() == "set() set()\n"
