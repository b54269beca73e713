"""Clients that name no session of CWM's, with a real engine: their conversations are recorded, frozen and gone on with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import uuid4

import openai
import pytest

from tests.live.conftest import LiveGateway
from tests.live.talk import Talk, talk

pytestmark = pytest.mark.live

BLOCK: Final = 64
FACTS: Final = "The password is 4711. " + " ".join(f"Item {i} is {i * 7 % 13}." for i in range(60))
SHORT: Final[dict[str, Any]] = {"max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client


@pytest.fixture
async def client(gateway: LiveGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    """One that sets a base URL and nothing else."""
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", timeout=120) as sdk:
        yield sdk


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def said(
    client: openai.AsyncOpenAI, agent: Talk, messages: list[Any], **headers: str
) -> tuple[Any, list[Any]]:
    """The raw answer, and the conversation with it."""
    raw = await client.chat.completions.with_raw_response.create(
        model=agent.model, messages=messages, extra_headers=headers, **SHORT
    )
    return raw, [*messages, raw.parse().choices[0].message.to_dict()]


async def test_a_conversation_without_any_header_is_one_session_and_another_one_is_another(
    client: openai.AsyncOpenAI, agent: Talk
) -> None:
    first, talked = await said(client, agent, [user(f"{uuid4().hex} {FACTS}")])
    other, _ = await said(client, agent, [user(f"{uuid4().hex} {FACTS}")])
    again, _ = await said(client, agent, [*talked, user("Say more.")])
    session = first.headers["cwm-session-id"]
    assert again.headers["cwm-session-id"] == session != other.headers["cwm-session-id"]
    assert "cwm-diverged-at" not in again.headers
    log = await agent.tool("turn_log", session_id=session)
    assert [turn["relation"] for turn in log["turns"]] == ["continues", "begins"]


async def test_a_client_goes_on_from_a_window_under_the_id_that_it_has(
    client: openai.AsyncOpenAI, agent: Talk
) -> None:
    own = {"x-session-id": f"ses_{uuid4().hex}"}
    session, window = own["x-session-id"], f"w-{uuid4().hex[:10]}"
    _, talked = await said(client, agent, [user(FACTS)], **own)
    await agent.tool("window_freeze", session_id=session, window_name=window)
    frozen = (await agent.tool("turn_show", window_name=window, include_tokens=True))["token_ids"]
    # The client knows nothing of states.
    await said(client, agent, [*talked, user("This was a mistake.")], **own)
    resumed = await agent.tool("window_thaw", window_name=window, as_session=session)
    assert (resumed["session_id"], resumed["verification"]) == (session, "exact")
    assert resumed["token_count"] == len(frozen)
    raw, _ = await said(client, agent, [*talked, user("What is the password?")], **own)
    assert raw.headers["cwm-session-id"] == session
    shown = await agent.tool("turn_show", turn=raw.headers["cwm-turn"], include_tokens=True)
    at = shown["turn"]["parent_at"]
    assert shown["token_ids"][:at] == frozen[:at]
    assert int(raw.headers["cwm-cached-tokens"]) >= at // BLOCK * BLOCK
    turns = (await agent.tool("turn_log", session_id=session))["turns"]
    assert len(turns) == 3
    assert shown["turn"]["parent"] == turns[-1]["id"]
