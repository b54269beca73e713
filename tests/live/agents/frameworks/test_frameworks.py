"""Frameworks that agents are built with, on each protocol: a conversation with a tool call is one line of turns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from tests.live.agents.frameworks.conversation import FRAMEWORKS
from tests.live.agents.programs import HERE
from tests.live.agents.proxy import Tool, proxied
from tests.live.conftest import LiveGateway
from tests.live.talk import talk
from tests.node import programs as node
from tests.prepared import from_pypi

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

AI_SDK: Final = ("ai-sdk-chat", "ai-sdk-responses", "ai-sdk-messages")
QUESTIONS: Final = (
    "Please read the notes and tell me the code.",
    "Which numbers are in it?",
    "Is that code safe?",
    "Thank you. What else is there?",
)
_HERE: Final = Path(__file__).parent
_SECONDS: Final = 300


async def conversation(name: str, url: str, model: str) -> node.Ended:
    """All questions, in a process of its own."""
    programs = node.installed(HERE / "package.json")
    if name in AI_SDK:
        script = str(_HERE / "conversation.mjs")
        return await programs.script(script, name, url, model, *QUESTIONS, seconds=_SECONDS)
    line = (sys.executable, str(_HERE / "conversation.py"), name, url, model, *QUESTIONS)
    # The interpreter's own packages are behind those that are pinned.
    pinned = {"PYTHONPATH": str(from_pypi(_HERE / "pins.txt"))}
    return await programs.run(line, variables=pinned, seconds=_SECONDS)


@pytest.mark.parametrize("name", [*FRAMEWORKS, *AI_SDK])
async def test_a_conversation_with_a_tool_call_is_one_line_in_one_session(
    gateway: LiveGateway, name: str
) -> None:
    async with proxied(gateway.url) as proxy, talk(gateway.url, gateway.model) as own:
        proxy.tool, proxy.calls = Tool("read_notes", {"path": "notes.txt"}), True
        ended = await conversation(name, proxy.url, gateway.model)
        assert ended.status == 0, ended.told
        assert [each.status for each in proxy.passed] == [200] * (len(QUESTIONS) + 1), [
            each.body for each in proxy.passed
        ]
        (session,) = {str(each.session) for each in proxy.passed}
        log = (await own.tool("turn_log", session_id=session))["turns"]
        assert [turn["id"] for turn in reversed(log)] == [each.turn for each in proxy.passed]
        assert [turn["relation"] for turn in reversed(log)] == ["begins", *["continues"] * len(QUESTIONS)]
        shown = await own.tool("turn_show", session_id=session)
        said = [str(message["content"]) for message in shown["messages"] if message["role"] == "user"]
        assert all(question in words for question, words in zip(QUESTIONS, said, strict=True))
        assert any("4711" in str(message) for message in shown["messages"] if message["role"] == "tool")
