"""Frameworks that agents are built with, on each protocol: a conversation is one line of turns, and survives the loss of everything."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.live.agents.frameworks.conversation import FRAMEWORKS
from tests.live.agents.house import House, is_as_predicted, together
from tests.live.agents.programs import HERE
from tests.live.agents.proxy import Passed, Proxy, Tool, proxied
from tests.live.talk import Talk, talk
from tests.node import programs as node
from tests.prepared import from_pypi

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]

AI_SDK: Final = ("ai-sdk-chat", "ai-sdk-responses", "ai-sdk-messages")
NAMES: Final = [*FRAMEWORKS, *AI_SDK]
QUESTIONS: Final = (
    "Please read the notes and tell me the code.",
    "Which numbers are in it?",
    "Is that code safe?",
    "Thank you. What else is there?",
)
# With the framework's name, because the model may have given two of them the same answers.
RESUMED: Final = "To {}: let us go on."
FORKED: Final = "To {}: rather tell me a colour."
FORKED_AFTER: Final = 2
TASK: Final = "Which code is in the notes?"
WITH_SUB_AGENTS: Final = [
    name for name in NAMES if name not in {"openai-chat", "openai-responses", "anthropic"}
]
_HERE: Final = Path(__file__).parent
_SECONDS: Final = 300


@dataclass(slots=True)
class Story:
    """A conversation of a framework, which keeps it in ``folder``; ``log`` and ``shown`` are its session's before the loss."""

    name: str
    folder: Path
    proxy: Proxy
    model: str
    log: list[dict[str, Any]] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)
    thawed: dict[str, Any] = field(default_factory=dict)
    resumed: dict[str, Any] = field(default_factory=dict)
    forked: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)

    @property
    def lived(self) -> list[Passed]:
        """The requests before the loss: one for each question, and one with what the tool returned."""
        return self.proxy.passed[: len(QUESTIONS) + 1]

    @property
    def session(self) -> str:
        (session,) = {str(each.session) for each in self.lived}
        return session

    async def says(self, *questions: str, after: str = "all") -> None:
        """In a process of its own; AssertionError where it fails."""
        programs = node.installed(HERE / "package.json")
        arguments = (self.name, self.proxy.url, self.model, str(self.folder), after, *questions)
        if self.name in AI_SDK:
            ended = await programs.script(str(_HERE / "conversation.mjs"), *arguments, seconds=_SECONDS)
        else:
            line = (sys.executable, str(_HERE / "conversation.py"), *arguments)
            # The interpreter's own packages are behind those that are pinned.
            pinned = {"PYTHONPATH": str(from_pypi(_HERE / "pins.txt"))}
            ended = await programs.run(line, variables=pinned, seconds=_SECONDS)
        assert ended.status == 0, f"{self.name}: {ended.told}"

    async def begin(self, own: Talk) -> None:
        """Four questions; for the first one a tool is called. Then it is frozen under its name."""
        self.proxy.tool, self.proxy.calls = Tool("read_notes", {"path": "notes.txt"}), True
        await self.says(*QUESTIONS)
        self.log = (await own.tool("turn_log", session_id=self.session))["turns"]
        self.shown = await own.tool("turn_show", session_id=self.session)
        await own.tool("window_freeze", session_id=self.session, window_name=self.name, keep_session=True)

    async def go_on(self, own: Talk) -> None:
        """With all of it, then from an earlier question."""
        self.thawed = await own.tool("window_thaw", window_name=self.name, as_session=self.session)
        await self.says(RESUMED.format(self.name))
        self.resumed = await own.tool("turn_show", turn=str(self.proxy.passed[-1].turn))
        await self.says(FORKED.format(self.name), after=str(FORKED_AFTER))
        self.forked = await own.tool("turn_show", turn=str(self.proxy.passed[-1].turn))
        self.after = await own.tool("turn_log", session_id=self.session)


@pytest.fixture(scope="module")
async def stories(house: House, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Story]]:
    """A conversation of each framework, frozen under its name."""
    assert house.gateway is not None
    url, model = house.gateway.url, house.gateway.model
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(talk(url, model))
        stories: dict[str, Story] = {}
        for name in NAMES:
            proxy = await stack.enter_async_context(proxied(url))
            stories[name] = Story(name, tmp_path_factory.mktemp(name), proxy, model)
        await together(story.begin(own) for story in stories.values())
        yield stories


@pytest.fixture(scope="module")
async def resumed(house: House, stories: dict[str, Story]) -> dict[str, Story]:
    """The same, gone on with after gateway and engine were killed."""
    await house.resume(stories.values())
    return stories


def questions(shown: dict[str, Any]) -> list[str]:
    """What a user said in a turn's messages."""
    return [str(message["content"]) for message in shown["messages"] if message["role"] == "user"]


def are_said(expected: list[str], said: list[str]) -> bool:
    """A protocol may write words as blocks."""
    return len(said) == len(expected) and all(
        question in words for question, words in zip(expected, said, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
async def test_a_conversation_with_a_tool_call_is_one_line_in_one_session(
    stories: dict[str, Story], name: str
) -> None:
    story = stories[name]
    assert [each.status for each in story.lived] == [200] * (len(QUESTIONS) + 1), [
        each.body for each in story.lived
    ]
    assert [turn["id"] for turn in reversed(story.log)] == [each.turn for each in story.lived]
    assert [turn["relation"] for turn in reversed(story.log)] == ["begins", *["continues"] * len(QUESTIONS)]
    assert are_said([*QUESTIONS], questions(story.shown))
    assert any("4711" in str(message) for message in story.shown["messages"] if message["role"] == "tool")
    # All of them say the same, to the same principal.
    assert [each.name for each in stories.values() if each.session == story.session] == [name]


@pytest.mark.parametrize("name", NAMES)
async def test_a_framework_goes_on_with_its_conversation_after_everything_was_killed(
    resumed: dict[str, Story], name: str
) -> None:
    story = resumed[name]
    assert (story.thawed["verification"], story.thawed["session_id"]) == ("exact", story.session)
    assert [each.status for each in story.proxy.passed] == [200] * (len(QUESTIONS) + 3)
    assert are_said([*QUESTIONS, RESUMED.format(name)], questions(story.resumed))
    turn = story.resumed["turn"]
    assert story.proxy.passed[len(QUESTIONS) + 1].session == story.session
    assert (turn["parent"], turn["relation"]) == (story.lived[-1].turn, "continues")
    assert is_as_predicted(turn), turn


@pytest.mark.parametrize("name", NAMES)
async def test_a_fork_has_the_turn_that_it_left_as_its_parent_and_overwrites_nothing(
    resumed: dict[str, Story], name: str
) -> None:
    story = resumed[name]
    assert are_said([*QUESTIONS[:FORKED_AFTER], FORKED.format(name)], questions(story.forked))
    turn = story.forked["turn"]
    # Of the first question there are two turns, because of the tool.
    assert turn["parent"] == story.lived[FORKED_AFTER].turn
    assert is_as_predicted(turn), turn
    ids = {each["id"] for each in story.after["turns"]}
    assert {*(each["id"] for each in story.log), story.resumed["turn"]["id"]} <= ids


@pytest.mark.parametrize("name", WITH_SUB_AGENTS)
async def test_a_sub_agent_is_apart_from_the_conversation_that_it_works_for(
    resumed: dict[str, Story], house: House, tmp_path: Path, name: str
) -> None:
    assert house.gateway is not None
    url, model = house.gateway.url, house.gateway.model
    async with proxied(url) as proxy, talk(url, model) as own:
        proxy.tool, proxy.calls = Tool("ask_reader", {"input": TASK}), True
        await Story(name, tmp_path, proxy, model).says(*QUESTIONS[:2])
        assert [each.status for each in proxy.passed] == [200] * 4
        (task,) = [each for each in proxy.passed if not each.has_tools]
        main = [each for each in proxy.passed if each.has_tools]
        (session,) = {str(each.session) for each in main}
        log = (await own.tool("turn_log", session_id=session))["turns"]
        assert [turn["id"] for turn in reversed(log)] == [each.turn for each in main]
        assert [turn["relation"] for turn in reversed(log)] == ["begins", "continues", "continues"]
        assert are_said([*QUESTIONS[:2]], questions(await own.tool("turn_show", session_id=session)))
        assert task.session not in {session, *(each.session for each in resumed.values())}
        assert are_said([TASK], questions(await own.tool("turn_show", session_id=str(task.session))))
