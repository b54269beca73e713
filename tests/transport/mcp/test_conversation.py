"""Tools without a session id: they work on the conversation that the calling agent is in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from cwm.domain.keep import KeepPolicies, KeepPolicy
from cwm.domain.messages import message_of
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.services.turns.recording.placement import Said
from cwm.services.turns.recording.turns import Answered
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


async def talked(
    gateway: Gateway,
    agent: Agent,
    session_id: str,
    call_id: str = "call_1",
    name: str = "look",
    **arguments: Any,
) -> None:
    """A session of one turn just now, in whose answer the model calls a tool."""
    session = a_session(session_id, agent.tenant, owner="agent", model=MODEL, created_at=datetime.now(UTC))
    await gateway.parts.base.registry.add_session(session, ())
    await answered(gateway, agent, session, call_id, name, arguments)


async def answered(
    gateway: Gateway, agent: Agent, session: Session, call_id: str, name: str, arguments: Mapping[str, Any]
) -> None:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    answer = message_of({"role": "assistant", "content": "Hm.", "tool_calls": [call]})
    with gateway.parts.engine_side.turns.begin(Principal(agent.tenant, "agent"), session.id) as turn:
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


@pytest.mark.parametrize("prefix", ["mcp__cwm__", "cwm_", ""])
async def test_the_answer_that_made_the_call_says_which_conversation_it_is(
    agent: Agent, gateway: Gateway, prefix: str
) -> None:
    await talked(gateway, agent, "one", name=f"{prefix}turn_log", limit=5)
    await talked(gateway, agent, "two", name=f"{prefix}turn_log", limit=6)
    await talked(gateway, agent, "three", name=f"{prefix}turn_search", limit=6, query="x")
    assert (await asked(agent, "turn_log", {}, limit=5)).value["session_id"] == "one"
    assert (await asked(agent, "turn_log", {}, limit=6)).value["session_id"] == "two"
    refusal = (await asked(agent, "turn_log", {})).error
    assert (refusal["code"], refusal["context"]) == ("CWM-1001", {"field": "session_id"})


async def test_a_tool_that_runs_others_is_looked_into(agent: Agent, gateway: Gateway) -> None:
    await talked(gateway, agent, "one", name="tool_read", tool="cwm_turn_log", arguments={"limit": 5})
    assert (await asked(agent, "turn_log", {}, limit=5)).value["session_id"] == "one"


async def test_the_only_conversation_is_no_evidence(agent: Agent, gateway: Gateway) -> None:
    """Without authentication it may be another program's."""
    await talked(gateway, agent, "one")
    for tool in ("turn_log", "turn_show", "window_status"):
        assert (await asked(agent, tool, {})).error["code"] == "CWM-1001"
    assert (await asked(agent, "turn_branch", {}, new_session_id="b")).error["code"] == "CWM-1001"


async def test_a_call_that_two_conversations_wait_for_is_nobodys(agent: Agent, gateway: Gateway) -> None:
    for session_id in ("one", "two"):
        await talked(gateway, agent, session_id, name="turn_log")
    refusal = (await asked(agent, "turn_log", {})).error
    assert refusal["code"] == "CWM-1001"
    assert sorted(refusal["context"]["sessions"]) == ["one", "two"]


async def test_a_conversation_that_went_on_does_not_wait_for_the_call(agent: Agent, gateway: Gateway) -> None:
    await talked(gateway, agent, "one", name="turn_log")
    session = await gateway.parts.base.registry.session(agent.tenant, "one")
    assert session is not None
    await answered(gateway, agent, session, "call_2", "look", {})
    assert (await asked(agent, "turn_log", {})).error["code"] == "CWM-1001"


async def test_a_call_that_arrives_before_its_answer_has_ended_is_waited_for(
    agent: Agent, gateway: Gateway
) -> None:
    session = a_session("one", agent.tenant, owner="agent", model=MODEL, created_at=datetime.now(UTC))
    await gateway.parts.base.registry.add_session(session, ())
    function = {"name": "cwm_turn_log", "arguments": "{}"}
    call = {"id": "call_1", "type": "function", "function": function}
    answer = message_of({"role": "assistant", "content": "Hm.", "tool_calls": [call]})
    turns = gateway.parts.engine_side.turns
    with turns.begin(Principal(agent.tenant, "agent"), "one") as turn:
        await turn.ask(session, Said([HELLO]))
        calling = asyncio.create_task(asked(agent, "turn_log", {}))
        await asyncio.wait([calling], timeout=0.5)
        assert not calling.done()
        await turn.record(Answered((1, 2, 3), 2, answer))
    assert (await calling).value["session_id"] == "one"


async def test_an_answer_that_streams_may_make_a_call_that_another_conversation_waits_for(
    agent: Agent, gateway: Gateway
) -> None:
    await talked(gateway, agent, "left", name="turn_log")
    session = a_session("one", agent.tenant, owner="agent", model=MODEL, created_at=datetime.now(UTC))
    await gateway.parts.base.registry.add_session(session, ())
    call = {"id": "call_2", "type": "function", "function": {"name": "turn_log", "arguments": "{}"}}
    answer = message_of({"role": "assistant", "content": "Hm.", "tool_calls": [call]})
    with gateway.parts.engine_side.turns.begin(Principal(agent.tenant, "agent"), "one") as turn:
        await turn.ask(session, Said([HELLO]))
        calling = asyncio.create_task(asked(agent, "turn_log", {}))
        await asyncio.wait([calling], timeout=0.5)
        assert not calling.done()
        await turn.record(Answered((1, 2, 3), 2, answer))
    refusal = (await calling).error
    assert (refusal["code"], sorted(refusal["context"]["sessions"])) == ("CWM-1001", ["left", "one"])


async def test_where_messages_are_not_kept_the_refusal_says_so(agent: Agent, gateway: Gateway) -> None:
    gateway.parts.engine_side.turns.keep = KeepPolicies(KeepPolicy(messages=False))
    await talked(gateway, agent, "one", name="turn_log")
    refusal = (await asked(agent, "turn_log", {})).error
    assert refusal["code"] == "CWM-1001"
    assert "not kept" in refusal["message"]


async def test_anothers_answer_is_no_evidence(agent: Agent, gateway: Gateway) -> None:
    fields = {"owner": "ann", "model": MODEL, "created_at": datetime.now(UTC)}
    session = a_session("of-another", agent.tenant, **fields)
    await gateway.parts.base.registry.add_session(session, ())
    await answered(gateway, agent, session, "call_1", "turn_log", {})
    assert (await asked(agent, "turn_log", {})).error["code"] == "CWM-1001"


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


async def test_an_agent_freezes_the_conversation_whose_answer_called_for_it(freezing: Freezing) -> None:
    await freezing.talks("one", "two")
    for meta in ({}, {"threadId": "unknown", "claudecode/toolUseId": "call_nobody"}):
        assert (await freezing.freezes("second", meta)).error["code"] == "CWM-1001"
    name = "mcp__cwm__window_freeze"
    await talked(freezing.gateway, freezing.agent, "three", name=name, window_name="mine")
    assert (await freezing.freezes("mine", {})).value["session_id"] == "three"
    assert await freezing.windows() == {"mine": "three"}
    assert [await freezing.state(each) for each in ("one", "two")] == ["active", "active"]
