"""What users lost before a session was a tree: late ends, titles, windows continued with the new message only."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import openai
import pytest

from tests.live.conftest import LiveGateway
from tests.live.engine import LiveEngine
from tests.live.talk import RefusedError, Talk, talk

pytestmark = pytest.mark.live

FACTS = "The password is 4711. " + " ".join(f"Item {i} is {i * 7 % 13}." for i in range(60))
BLOCK = 64


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client


@pytest.fixture
async def client(gateway: LiveGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", timeout=120, max_retries=0
    ) as sdk:
        yield sdk


def new_name(kind: str) -> str:
    return f"{kind}-{uuid4().hex[:10]}"


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def chat(client: openai.AsyncOpenAI, agent: Talk, messages: list[Any], **headers: str) -> Any:
    """A short greedy answer, raw, with the headers it came with."""
    return await client.chat.completions.with_raw_response.create(
        model=agent.model,
        messages=messages,
        max_tokens=8,
        temperature=0,
        extra_body={"ignore_eos": True},
        extra_headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


async def size(agent: Talk, session_id: str) -> int:
    return int((await agent.tool("window_status", session_id=session_id))["token_count"])


async def computed_cold(engine: LiveEngine, agent: Talk, prompt: list[int], max_tokens: int) -> list[int]:
    """What the engine says to these tokens if it reuses nothing."""
    fields = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    response = await agent.http.post(
        f"{engine.vllm_url}/v1/completions",
        json={**fields, "model": agent.model, "cache_salt": new_name("cold"), "return_token_ids": True},
    )
    return list(response.raise_for_status().json()["choices"][0]["token_ids"])


async def tokens(agent: Talk, **of: str) -> list[int]:
    return list((await agent.tool("turn_show", include_tokens=True, **of))["token_ids"])


async def test_a_request_that_was_given_up_does_not_replace_the_turn_after_it(
    agent: Talk, client: openai.AsyncOpenAI
) -> None:
    session = new_name("given-up")
    story = client.with_options(timeout=0.5).chat.completions.create(
        model=agent.model,
        messages=[user("Tell me a long story.")],
        max_tokens=400,
        temperature=0,
        extra_body={"ignore_eos": True},
        extra_headers={"CWM-Session-Id": session},
    )
    with pytest.raises(openai.APITimeoutError):
        await story
    await chat(client, agent, [user("Never mind. Say hello.")], CWM_Session_Id=session)
    frozen = await agent.tool("window_freeze", session_id=session, window_name=session)
    shown = await agent.tool("turn_show", window_name=session)
    assert shown["messages"][0]["content"] == "Never mind. Say hello."
    assert frozen["token_count"] == len(await tokens(agent, window_name=session))
    assert await size(agent, session) == frozen["token_count"]


async def test_a_title_request_leaves_the_conversation_and_the_freeze_takes_that(
    agent: Talk, client: openai.AsyncOpenAI
) -> None:
    session = new_name("title")
    await chat(client, agent, [user(FACTS)], CWM_Session_Id=session)
    conversation = await size(agent, session)
    title = await chat(
        client, agent, [user("Generate a 3-5 word title for this chat.")], CWM_Session_Id=session
    )
    assert await size(agent, session) == conversation
    log = await agent.tool("turn_log", session_id=session)
    assert [(turn["number"], turn["line"]) for turn in log["turns"]] == [(2, "side"), (1, "main")]
    assert log["turns"][0]["id"] == title.headers["cwm-turn"]
    assert log["current_turn"] == log["turns"][1]["id"]
    frozen = await agent.tool("window_freeze", session_id=session, window_name=session)
    assert frozen["token_count"] == conversation


async def test_a_freeze_right_after_a_stream_was_stopped_waits_for_its_turn(
    agent: Talk, client: openai.AsyncOpenAI
) -> None:
    session = new_name("stopped")
    stream: Any = await client.chat.completions.create(
        model=agent.model,
        messages=[user("Count to one hundred.")],
        max_tokens=80,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"CWM-Session-Id": session},
    )
    async for _ in stream:
        break
    await stream.close()
    frozen = await agent.tool("window_freeze", session_id=session, window_name=session)
    shown = await agent.tool("turn_show", window_name=session)
    assert shown["turn"]["token_count"] == frozen["token_count"]
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]


async def test_a_thawed_window_refuses_a_request_that_would_not_see_it(
    agent: Talk, client: openai.AsyncOpenAI
) -> None:
    session, thawed = new_name("secret"), new_name("thawed")
    await chat(client, agent, [user(FACTS)], CWM_Session_Id=session)
    await agent.tool("window_freeze", session_id=session, window_name=session)
    answer = await agent.tool("window_thaw", window_name=session, new_session_id=thawed)
    assert f"CWM-Continue: session:{thawed}" in answer["next_step"]
    before = await tokens(agent, session_id=thawed)
    with pytest.raises(openai.ConflictError, match="CWM-Continue"):
        await chat(client, agent, [user("What is the password?")], CWM_Session_Id=thawed)
    apart = await chat(
        client, agent, [user("What is the password?")], CWM_Session_Id=thawed, CWM_Branch="new"
    )
    assert apart.parse().usage.prompt_tokens < 60
    assert await tokens(agent, session_id=thawed) == before
    said = (await agent.tool("turn_show", session_id=thawed))["messages"][-1]
    whole = [user(FACTS), {"role": "assistant", "content": said["content"]}, user("And now?")]
    await chat(client, agent, whole, CWM_Session_Id=thawed)
    assert (await tokens(agent, session_id=thawed))[: len(before) - 1] == before[:-1]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_never_saw_a_window_goes_on_from_it_token_for_token(
    live_engine: LiveEngine, agent: Talk, client: openai.AsyncOpenAI, streamed: bool
) -> None:
    session = new_name("secret")
    await chat(client, agent, [user(FACTS)], CWM_Session_Id=session)
    await agent.tool("window_freeze", session_id=session, window_name=session)
    window = await tokens(agent, window_name=session)
    raw: Any = await client.chat.completions.with_raw_response.create(
        model=agent.model,
        messages=[user("What is the password?")],
        max_tokens=16,
        temperature=0,
        stream=streamed,
        extra_body={"ignore_eos": True, **({"stream_options": {"include_usage": True}} if streamed else {})},
        extra_headers={"CWM-Continue": f"window:{session}"},
    )
    thawed = raw.headers["cwm-session-id"]
    if streamed:
        chunks = [chunk async for chunk in raw.parse()]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        usage = chunks[-1].usage
    else:
        text, usage = raw.parse().choices[0].message.content, raw.parse().usage
    after = await tokens(agent, session_id=thawed)
    assert after[: len(window)] == window
    assert usage.prompt_tokens > len(window)
    assert usage.prompt_tokens_details.cached_tokens >= len(window) // BLOCK * BLOCK - BLOCK
    assert (
        await computed_cold(live_engine, agent, after[: usage.prompt_tokens], 16)
        == after[usage.prompt_tokens :]
    )
    said = (await agent.tool("turn_show", turn=raw.headers["cwm-turn"]))["messages"]
    assert [(message["role"], message["content"]) for message in said[-2:]] == [
        ("user", "What is the password?"),
        ("assistant", text),
    ]
    assert said[0]["content"] == FACTS
    again = await chat(client, agent, [user("Sure?")], CWM_Continue=f"session:{thawed}")
    assert again.parse().usage.prompt_tokens > len(after)


async def test_a_message_edited_at_turn_10_of_20_has_only_what_follows_computed(
    agent: Talk, client: openai.AsyncOpenAI
) -> None:
    session, said = new_name("edited"), list[Any]()
    turns: list[str] = []
    for number in range(20):
        said.append(user(f"Fact {number}: {FACTS[:120]}"))
        answer = await chat(client, agent, said, CWM_Session_Id=session)
        said.append({"role": "assistant", "content": answer.parse().choices[0].message.content})
        turns.append(answer.headers["cwm-turn"])
    edited = [*said[:20], user("Fact 10 was wrong: there is none.")]
    answer = await chat(client, agent, edited, CWM_Session_Id=session)
    usage = answer.parse().usage
    assert answer.headers["cwm-diverged-at"] == "20; role=user; cause=edited"
    assert int(answer.headers["cwm-cached-tokens"]) == usage.prompt_tokens_details.cached_tokens
    shown = (await agent.tool("turn_show", turn=answer.headers["cwm-turn"]))["turn"]
    assert (shown["parent"], shown["relation"], shown["line"]) == (turns[9], "continues", "main")
    assert usage.prompt_tokens_details.cached_tokens >= shown["parent_at"] // BLOCK * BLOCK
    log = await agent.tool("turn_log", session_id=session)
    assert log["current_turn"] == answer.headers["cwm-turn"]
    assert len(log["turns"]) == 21


async def test_a_session_that_is_kept_goes_on_and_its_window_thaws_to_the_state_of_the_freeze(
    agent: Talk, client: openai.AsyncOpenAI
) -> None:
    session, said = new_name("kept"), [user(FACTS)]
    first = await chat(client, agent, said, CWM_Session_Id=session)
    state = await tokens(agent, session_id=session)
    await agent.tool("window_freeze", session_id=session, window_name=f"{session}-1", keep_session=True)
    said += [{"role": "assistant", "content": first.parse().choices[0].message.content}, user("Go on.")]
    await chat(client, agent, said, CWM_Session_Id=session)
    assert await size(agent, session) > len(state)
    turn = first.headers["cwm-turn"]
    await agent.tool("window_freeze", session_id=session, window_name=f"{session}-2", turn=turn)
    for window in (f"{session}-1", f"{session}-2"):
        thawed = await agent.tool("window_thaw", window_name=window)
        assert await tokens(agent, session_id=thawed["session_id"]) == state
    await agent.tool("window_delete", window_name=f"{session}-2", force=True)
    assert (await agent.tool("window_status", session_id=session))["state"] == "active"


async def test_two_conversations_under_one_id_are_named_and_either_can_be_frozen(
    agent: Talk, client: openai.AsyncOpenAI
) -> None:
    session = new_name("two")
    system = {"role": "system", "content": "You are terse."}
    ones, others = [system, user("One. " + FACTS)], [system, user("Other. " + FACTS + " And more.")]
    last: dict[str, str] = {}
    for _ in range(2):
        for name, said in (("one", ones), ("other", others)):
            answer = await chat(client, agent, said, CWM_Session_Id=session)
            said += [{"role": "assistant", "content": answer.parse().choices[0].message.content}, user("On.")]
            last[name] = answer.headers["cwm-turn"]
    with pytest.raises(RefusedError) as refused:
        await agent.tool("window_freeze", session_id=session, window_name=session)
    assert refused.value.code == "CWM-1003"
    assert sorted(refused.value.context["turns"]) == sorted(last.values())
    await agent.tool("window_freeze", session_id=session, window_name=session, turn=last["one"])
    shown = await agent.tool("turn_show", window_name=session)
    assert shown["messages"][1]["content"].startswith("One.")


async def shell(gateway: LiveGateway, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cwm",
        *arguments,
        env={**os.environ, "CWM_PORT": gateway.url.rsplit(":", 1)[1]},
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_what_was_said_can_be_read_in_the_shell(
    gateway: LiveGateway, agent: Talk, client: openai.AsyncOpenAI
) -> None:
    session = new_name("read")
    answer = await chat(client, agent, [user("What can be read?")], CWM_Session_Id=session)
    text = answer.parse().choices[0].message.content
    shown = await shell(gateway, "turns", "show", session)
    assert shown.startswith(f"[user]\nWhat can be read?\n\n[assistant]\n{text}")
    assert answer.headers["cwm-turn"] in await shell(gateway, "turns", "log", session)
