"""Real coding agents that have CWM's tools: each freezes the conversation that it is in, without an id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from cwm.domain.clients.client import Access
from cwm.domain.clients.known import CLIENTS
from tests.live.agents.programs import AGENTS, Agent, Place, place
from tests.live.agents.proxy import Tool, proxied
from tests.live.conftest import LiveGateway
from tests.live.talk import Talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

QUESTION: Final = "Please keep this conversation."
FREEZE: Final = "window_freeze"


def _tools_of(name: str, url: str, model: str) -> str:
    """What `cwm connect` says connects the client to CWM's tools."""
    (client,) = [each for each in CLIENTS if each.name == name]
    assert client.mcp is not None
    (part,) = client.mcp(Access(url, model))
    return part.text


def _json_beside(file: Path, text: str) -> None:
    settings = json.loads(file.read_text()) if file.exists() else {}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**settings, **json.loads(text)}))


def _text_beside(file: Path, text: str) -> None:
    """Continue counts all tools of CWM, of which the model gets one, and asks nothing if they exceed the context."""
    own = file.read_text().replace("contextLength: 8192", "contextLength: 65536")
    file.write_text(f"{own}\n{text}\n")


@dataclass(frozen=True, slots=True)
class Connected:
    """An agent with CWM's tools, which are in ``file``."""

    file: Callable[[Place], Path]
    add: Callable[[Path, str], None]


def _agent(name: str) -> Agent:
    (agent,) = [each for each in AGENTS if each.name == name]
    return agent


CONNECTED: Final = {
    "opencode": Connected(lambda place: place.work / "opencode.json", _json_beside),
    "continue": Connected(lambda place: place.home / "config.yaml", _text_beside),
}


async def _frozen(name: str, window: str, folder: Path, gateway: LiveGateway, names: Sequence[str]) -> str:
    """The session from which the agent froze the window."""
    agent, connected = _agent(name), CONNECTED[name]
    (client,) = [each for each in CLIENTS if each.name == name]
    async with proxied(gateway.url) as proxy:
        its = place(folder, proxy.url, gateway.model)
        agent.prepare(its)
        connected.add(connected.file(its), _tools_of(name, gateway.url, gateway.model))
        proxy.tool = Tool(client.tool_name.format(FREEZE), {"window_name": window})
        proxy.hidden = frozenset(client.tool_name.format(each) for each in names if each != FREEZE)
        proxy.calls = True
        await agent.run(its, agent.begin(its), QUESTION)
        assert not proxy.calls, "its tools were not offered"
        (session,) = {str(each.session) for each in proxy.passed if each.has_tools}
        return session


@pytest.mark.parametrize("name", CONNECTED)
async def test_an_agent_freezes_the_conversation_that_it_is_in(
    gateway: LiveGateway, agent: Talk, tmp_path: Path, name: str
) -> None:
    """Two of them at once, which begin alike."""
    names = [tool.name for tool in await agent.mcp.list_tools()]
    windows = (f"{name}-1", f"{name}-2")
    sessions = await asyncio.gather(
        *(_frozen(name, window, tmp_path / window, gateway, names) for window in windows)
    )
    assert len({*sessions}) == len(sessions)
    for window, session in zip(windows, sessions, strict=True):
        status = await agent.tool("window_status", window_name=window)
        assert status["session_id"] == session
