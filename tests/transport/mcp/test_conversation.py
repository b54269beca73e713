"""Tools without a session id: they work on the conversation that the calling agent is in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from cwm.domain.messages import message_of
from cwm.domain.principal import Principal
from cwm.services.turns.placement import Said
from cwm.services.turns.turns import Answered
from tests.adapters.vllm.fake_vllm import MODEL, fake_vllm
from tests.contracts.nouns import a_session
from tests.transport.llm.gateway import settings_for
from tests.transport.mcp.gateway import Agent, Gateway, ToolReply, fastmcp_agent
from tests.transport.mcp.gateway import gateway as running_gateway

pytestmark = pytest.mark.slow

HELLO: Final = message_of({"role": "user", "content": "Hello"})
SAYS_TWO: Final[tuple[Mapping[str, Any], ...]] = (
    {"threadId": "two"},
    {"sessionId": "two", "threadId": "two"},
    {"sessionId": "two"},
    {"claudecode/toolUseId": "call_two"},
    {"threadId": "unknown", "claudecode/toolUseId": "call_two"},
)
"""What Codex and Claude Code say with a call of a tool."""


async def talked(gateway: Gateway, agent: Agent, session_id: str, call_id: str = "", **metadata: str) -> None:
    """A session of one turn just now, in whose answer the model calls a tool."""
    session = a_session(
        session_id, agent.tenant, owner="agent", model=MODEL, created_at=datetime.now(UTC), metadata=metadata
    )
    await gateway.parts.base.registry.add_session(session, ())
    call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answer = message_of({"role": "assistant", "content": "Hm.", "tool_calls": [call]})
    with gateway.parts.engine_side.turns.begin(Principal(agent.tenant, "agent"), session_id) as turn:
        await turn.ask(session, Said([HELLO]))
        await turn.record(Answered((1, 2, 3), 2, answer))


async def asked(agent: Agent, tool: str, meta: Mapping[str, Any], **arguments: Any) -> ToolReply:
    result = await agent.client.call_tool_mcp(tool, arguments, meta=dict(meta))
    return ToolReply(bool(result.is_error), result.content[0].text, result.structured_content)


@pytest.mark.parametrize("meta", SAYS_TWO)
@pytest.mark.parametrize("tool", ["window_status", "turn_log", "turn_show"])
async def test_an_agent_is_in_the_conversation_that_its_client_names_or_called_from(
    agent: Agent, gateway: Gateway, tool: str, meta: Mapping[str, Any]
) -> None:
    for number in ("one", "two", "three"):
        await talked(gateway, agent, number, f"call_{number}")
    answer = (await asked(agent, tool, meta)).value
    assert answer["id" if tool == "window_status" else "session_id"] == "two"


async def test_what_was_said_is_searched_in_the_conversation_of_the_agent_or_in_all(
    agent: Agent, gateway: Gateway
) -> None:
    for number in ("one", "two"):
        await talked(gateway, agent, number)
    meta = {"threadId": "two"}
    own = (await asked(agent, "turn_search", meta, query="hello", include_messages=True)).value
    assert [(each["session_id"], each["message"]) for each in own["results"]] == [("two", HELLO.content)]
    everywhere = (await asked(agent, "turn_search", meta, query="hello", all_sessions=True)).value
    assert {each["session_id"] for each in everywhere["results"]} == {"one", "two"}
    named = (
        await asked(agent, "turn_search", meta, query="hello", all_sessions=True, session_id="one")
    ).value
    assert [each["session_id"] for each in named["results"]] == ["one"]


async def test_an_agent_in_one_conversation_need_not_say_which(agent: Agent, gateway: Gateway) -> None:
    assert (await asked(agent, "turn_log", {})).error["code"] == "CWM-2001"
    others: dict[str, dict[str, Any]] = {
        "of-yesterday": {"owner": "agent"},
        "of-another": {"owner": "ann", "updated_at": datetime.now(UTC)},
    }
    for session_id, fields in others.items():
        await gateway.parts.base.registry.add_session(a_session(session_id, agent.tenant, **fields), ())
    await talked(gateway, agent, "one")
    assert (await asked(agent, "turn_log", {})).value["session_id"] == "one"
    assert (await asked(agent, "turn_branch", {}, new_session_id="b")).value["token_count"] == 3
    refusal = (await asked(agent, "turn_log", {})).error
    assert refusal["code"] == "CWM-1003"
    assert sorted(refusal["context"]["sessions"]) == ["b", "one"]


async def test_a_sub_agent_is_a_conversation_to_choose_from_only_while_it_works(
    agent: Agent, gateway: Gateway
) -> None:
    await talked(gateway, agent, "helper", parent_session="one")
    await talked(gateway, agent, "one")
    assert (await asked(agent, "turn_log", {})).value["session_id"] == "one"
    await talked(gateway, agent, "another-helper", parent_session="one")
    refusal = (await asked(agent, "turn_log", {})).error
    assert refusal["code"] == "CWM-1003"
    assert sorted(refusal["context"]["sessions"]) == ["another-helper", "helper", "one"]


@dataclass(frozen=True, slots=True)
class Freezing:
    """A client of a gateway whose engine is there."""

    agent: Agent
    gateway: Gateway

    async def talks(self, *session_ids: str) -> None:
        for each in session_ids:
            await talked(self.gateway, self.agent, each, f"call_{each}")

    async def freezes(self, window: str, meta: Mapping[str, Any], **more: Any) -> ToolReply:
        return await asked(self.agent, "window_freeze", meta, window_name=window, **more)

    async def windows(self) -> dict[str, str]:
        """The session of each window, by its name."""
        listed = (await self.agent.call("window_list")).value["windows"]
        return {window["name"]: window["session_id"] for window in listed}

    async def state(self, session_id: str) -> str:
        session = await self.gateway.parts.base.registry.session(self.agent.tenant, session_id)
        assert session is not None
        return session.state.value


@pytest.fixture
async def freezing(tmp_path: Path, era: str) -> AsyncIterator[Freezing]:
    async with (
        fake_vllm() as vllm,
        running_gateway(tmp_path, engine=settings_for(vllm.url)) as running,
        fastmcp_agent(running.url, era) as agent,
    ):
        yield Freezing(agent, running)


@pytest.mark.parametrize("meta", SAYS_TWO)
async def test_an_agent_freezes_the_conversation_that_it_is_in_and_goes_on_with_it(
    freezing: Freezing, meta: Mapping[str, Any]
) -> None:
    await freezing.talks("one", "two", "three")
    frozen = (await freezing.freezes("kept", meta)).value
    assert (frozen["session_id"], frozen["token_count"]) == ("two", 3)
    assert await freezing.windows() == {"kept": "two"}
    assert await freezing.state("two") == "active"
    assert (await freezing.freezes("ended", meta, keep_session=False)).value["session_id"] == "two"
    assert await freezing.state("two") == "frozen"


async def test_an_agent_that_says_nothing_of_itself_freezes_its_only_conversation_or_hears_of_all(
    freezing: Freezing,
) -> None:
    assert (await freezing.freezes("none", {})).error["code"] == "CWM-2001"
    await freezing.talks("one")
    assert (await freezing.freezes("first", {})).value["session_id"] == "one"
    await freezing.talks("two")
    for meta in ({}, {"threadId": "unknown", "claudecode/toolUseId": "call_nobody"}):
        refusal = (await freezing.freezes("second", meta)).error
        assert refusal["code"] == "CWM-1003"
        assert sorted(refusal["context"]["sessions"]) == ["one", "two"]
    assert await freezing.windows() == {"first": "one"}
    assert [await freezing.state(each) for each in ("one", "two")] == ["active", "active"]
