"""Forks and sub-agents of real coding agents: whatever they say, the conversation that they left or work for goes on as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.live.agents.programs import AGENTS, SUB_AGENTS, TASK, Agent, place
from tests.live.agents.proxy import Passed, Tool, proxied
from tests.live.conftest import LiveGateway
from tests.live.talk import talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

QUESTIONS: Final = ("Please say a number.", "Is that number prime?")
FORKED: Final = "Rather tell me a colour."
BACK: Final = "And the next number?"
NAMES_ITS_PARENT: Final = ("opencode", "codex")


def questions(shown: dict[str, Any]) -> str:
    """What a user said in a turn's messages."""
    return "\n".join(str(message["content"]) for message in shown["messages"] if message["role"] == "user")


def conversation(passed: list[Passed]) -> list[Passed]:
    """The requests without those for titles."""
    return [each for each in passed if each.has_tools]


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent.fork], ids=lambda agent: agent.name)
async def test_a_fork_leaves_the_conversation_as_it_was(
    gateway: LiveGateway, tmp_path: Path, agent: Agent
) -> None:
    assert agent.fork is not None
    assert agent.again is not None
    async with proxied(gateway.url) as proxy, talk(gateway.url, gateway.model) as own:
        here = place(tmp_path, proxy.url, gateway.model)
        agent.prepare(here)
        await agent.says(here, QUESTIONS[0], resumed=False)
        await agent.says(here, QUESTIONS[1], resumed=True)
        parting = conversation(proxy.passed)[-1]
        session, turn = str(parting.session), str(parting.turn)
        before = await own.tool("turn_show", turn=turn, include_tokens=True)
        own_id = agent.id_of(here, session)
        await agent.run(here, agent.fork(here, own_id), FORKED)
        await agent.run(here, agent.again(here, own_id), BACK)
        fork, back = conversation(proxy.passed)[-2:]
        assert {each.status for each in proxy.passed} == {200}
        assert await own.tool("turn_show", turn=turn, include_tokens=True) == before

        shown = await own.tool("turn_show", session_id=session)
        assert (back.session, shown["turn"]["id"], shown["turn"]["parent"]) == (session, back.turn, turn)
        assert all(question in questions(shown) for question in (*QUESTIONS, BACK))
        assert FORKED not in questions(shown)

        forked = await own.tool("turn_show", turn=str(fork.turn))
        assert all(question in questions(forked) for question in (*QUESTIONS, FORKED))
        if agent.name == "continue":
            # It tells nobody that this is another conversation.
            assert (fork.session, forked["turn"]["parent"]) == (session, turn)
        else:
            assert fork.session != session
            assert (await own.tool("turn_show", session_id=str(fork.session))) == forked
            log = await own.tool("turn_log", session_id=str(fork.session))
            assert log["origin"] == turn


@pytest.mark.parametrize(("agent", "tool"), SUB_AGENTS, ids=[agent.name for agent, _ in SUB_AGENTS])
async def test_a_sub_agent_is_apart_from_the_conversation_that_it_works_for(
    gateway: LiveGateway, tmp_path: Path, agent: Agent, tool: Tool
) -> None:
    async with proxied(gateway.url) as proxy, talk(gateway.url, gateway.model) as own:
        here = place(tmp_path, proxy.url, gateway.model)
        agent.prepare(here)
        proxy.tool, proxy.calls = tool, True
        await agent.says(here, QUESTIONS[0], resumed=False)
        session = str(conversation(proxy.passed)[0].session)
        # The last conversation is the sub-agent's, for some.
        line = agent.again(here, session) if agent.again else agent.resume(here)
        await agent.run(here, line, QUESTIONS[1])
        assert {each.status for each in proxy.passed} == {200}
        main = [each for each in conversation(proxy.passed) if each.session == session]
        task = next(each for each in conversation(proxy.passed) if each.session != session)

        log = (await own.tool("turn_log", session_id=session))["turns"]
        assert {each.turn for each in main} <= {turn["id"] for turn in log}
        shown = await own.tool("turn_show", session_id=session)
        assert shown["turn"]["id"] == main[-1].turn
        assert any(message.get("tool_calls") for message in shown["messages"])
        assert any(message["role"] == "tool" for message in shown["messages"])
        assert all(question in questions(shown) for question in QUESTIONS)
        assert TASK not in questions(shown)

        assert TASK in questions(await own.tool("turn_show", session_id=str(task.session)))
        status = await own.tool("window_status", session_id=str(task.session))
        parent = session if agent.name in NAMES_ITS_PARENT else None
        assert status.get("metadata", {}).get("parent_session") == parent
