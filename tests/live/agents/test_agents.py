"""Real coding agents that know a base URL and nothing else: each conversation is one tree, and survives the loss of everything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.live.agents.house import House, predicted, together
from tests.live.agents.programs import AGENTS, NOTE, Agent, Place, place
from tests.live.agents.proxy import Passed, Proxy, proxied
from tests.live.talk import Talk, talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

NAMES: Final = [agent.name for agent in AGENTS]
QUESTIONS: Final = (
    "Please read the notes and tell me the code.",
    "Which numbers are in it?",
    "Is that code safe?",
    "Thank you. What else is there?",
)


@dataclass(slots=True)
class Story:
    """A conversation of an agent: what passed, and the turns of its session before and after the loss of everything."""

    agent: Agent
    place: Place
    proxy: Proxy
    log: list[dict[str, Any]] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)
    thawed: dict[str, Any] = field(default_factory=dict)
    resumed: dict[str, Any] = field(default_factory=dict)

    @property
    def conversation(self) -> list[Passed]:
        """The requests of its main line."""
        return [each for each in self.proxy.passed if each.has_tools or self.agent.tool is None]

    @property
    def session(self) -> str:
        (session,) = {str(each.session) for each in self.conversation}
        return session

    async def begin(self, own: Talk) -> None:
        """Four questions; for the first one a tool is called. Then it is frozen under the agent's name."""
        self.agent.prepare(self.place)
        if self.agent.tool is not None:
            self.proxy.tool, self.proxy.calls = self.agent.tool(self.place), True
        for question in QUESTIONS:
            await self.agent.says(self.place, question, resumed=bool(self.proxy.passed))
        self.log = (await own.tool("turn_log", session_id=self.session))["turns"]
        self.shown = await own.tool("turn_show", session_id=self.session)
        await own.tool(
            "window_freeze", session_id=self.session, window_name=self.agent.name, keep_session=True
        )

    async def go_on(self, own: Talk) -> None:
        self.thawed = await own.tool("window_thaw", window_name=self.agent.name, as_session=self.session)
        before = len(self.conversation)
        await self.agent.says(self.place, "Good. Let us go on.", resumed=True)
        self.resumed = await own.tool("turn_show", turn=str(self.conversation[before].turn))

    def path(self) -> list[str]:
        """The turns that the session's current turn goes on from, and itself, the oldest first."""
        by_id = {turn["id"]: turn for turn in self.log}
        path: list[str] = []
        turn: dict[str, Any] | None = self.log[0]
        while turn is not None:
            path.append(turn["id"])
            turn = by_id.get(turn.get("parent", ""))
        return path[::-1]


@pytest.fixture(scope="module")
async def stories(house: House, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Story]]:
    """A conversation of each agent, frozen under the agent's name."""
    assert house.gateway is not None
    url, model = house.gateway.url, house.gateway.model
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(talk(url, model))
        stories: dict[str, Story] = {}
        for agent in AGENTS:
            proxy = await stack.enter_async_context(proxied(url))
            folder = tmp_path_factory.mktemp(agent.name)
            stories[agent.name] = Story(agent, place(folder, proxy.url, model), proxy)
        await together(story.begin(own) for story in stories.values())
        yield stories


@pytest.fixture(scope="module")
async def resumed(house: House, stories: dict[str, Story]) -> dict[str, Story]:
    """The same, gone on with after gateway and engine were killed."""
    await house.resume(stories.values())
    return stories


@pytest.mark.parametrize("name", NAMES)
async def test_a_conversation_is_one_tree_in_one_session(stories: dict[str, Story], name: str) -> None:
    story = stories[name]
    assert {each.status for each in story.proxy.passed} == {200}
    # Nothing is overwritten: all that was ever asked is there, and side requests are no part of the line.
    assert {each.turn for each in story.proxy.passed} <= {turn["id"] for turn in story.log}
    said = "\n".join(str(message.get("content")) for message in story.shown["messages"])
    assert all(question in said for question in QUESTIONS)
    turns = [each.turn for each in story.conversation]
    assert story.shown["turn"]["id"] == turns[-1]
    if story.agent.tool is not None:
        assert any(message.get("tool_calls") for message in story.shown["messages"])
        assert NOTE in said
        # Qwen Code writes its reminders anew at each start: what it asks then goes on from an earlier turn than the last.
        path = [turn for turn in story.path() if turn in turns]
        assert path == sorted(path, key=turns.index)
        assert len(path) >= len(QUESTIONS)


@pytest.mark.parametrize("name", NAMES)
async def test_an_agent_goes_on_with_its_conversation_after_everything_was_killed(
    resumed: dict[str, Story], name: str
) -> None:
    story = resumed[name]
    assert (story.thawed["verification"], story.thawed["session_id"]) == ("exact", story.session)
    turn = story.resumed["turn"]
    assert turn["parent"] in {before["id"] for before in story.log}
    # A program that loses patience asks twice, and finds more the second time.
    assert turn["cached_tokens"] >= predicted(turn) > 0


@pytest.mark.parametrize("name", ["continue", "qwen-code"])
async def test_a_conversation_whose_client_names_none_is_found_though_a_file_was_edited(
    house: House, tmp_path: Path, name: str
) -> None:
    """Both write the state of the repository, or a list of its files, before the conversation, and write it anew at each start."""
    (agent,) = [each for each in AGENTS if each.name == name]
    assert house.gateway is not None
    url, model = house.gateway.url, house.gateway.model
    async with talk(url, model) as own, proxied(url) as proxy:
        story = Story(agent, place(tmp_path, proxy.url, model), proxy)
        agent.prepare(story.place)
        assert agent.tool is not None
        proxy.tool, proxy.calls = agent.tool(story.place), True
        await agent.says(story.place, QUESTIONS[0], resumed=False)
        asked = len(story.conversation)
        (story.place.work / "parser.py").write_text("# an edited file\n")
        await agent.says(story.place, QUESTIONS[1], resumed=True)
        log = (await own.tool("turn_log", session_id=story.session))["turns"]
    (turn,) = [each for each in log if each["id"] == story.conversation[asked].turn]
    assert (turn["line"], turn["joined"]) == ("main", "id")
    assert turn["cause"] in {"system_text", "edited"}
