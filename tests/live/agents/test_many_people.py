"""Fifty people who say the same words to a real engine, on all protocols: each has conversations of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml

from cwm import settings
from cwm.domain.access import granted
from cwm.wiring.access import opened_keys
from tests.live.agents.protocols import CHAT, MESSAGES, PROTOCOLS, Protocol, Question, user
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import talk

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

PEOPLE: Final = 50
AT_ONCE: Final = 5
OPENING: Final = user("Say hello.")
ON: Final = user("Again, please.")
NAMES: Final[tuple[dict[str, str], ...]] = ({}, {"X-Claude-Code-Session-Id": "of-all"}, {"session-id": "all"})
"""What their clients call the conversation: nothing, or all of them the same."""


@dataclass(frozen=True, slots=True)
class Crowd:
    gateway: LiveGateway
    keys: tuple[str, ...]

    async def converse(self, number: int, named: dict[str, str]) -> tuple[str, str]:
        """Two turns of one person; the session of each."""
        protocol = PROTOCOLS[number % len(PROTOCOLS)]
        headers = {"authorization": f"Bearer {self.keys[number]}", **named}
        async with httpx2.AsyncClient(
            base_url=self.gateway.url, headers=headers, timeout=300, trust_env=False
        ) as http:
            begun = await self._ask(http, protocol, OPENING)
            answer = {"role": "assistant", "content": text_of(protocol, begun.json())}
            gone_on = await self._ask(http, protocol, OPENING, answer, ON)
        return begun.headers["cwm-session-id"], gone_on.headers["cwm-session-id"]

    async def _ask(
        self, http: httpx2.AsyncClient, protocol: Protocol, *messages: dict[str, Any]
    ) -> httpx2.Response:
        body = protocol.body(self.gateway.model, Question(messages, max_tokens=4))
        return (await http.post(protocol.path, json=body)).raise_for_status()


def text_of(protocol: Protocol, answer: dict[str, Any]) -> str:
    if protocol is CHAT:
        return str(answer["choices"][0]["message"]["content"])
    said = answer if protocol is MESSAGES else answer["output"][0]
    return str(said["content"][0]["text"])


@pytest.fixture(scope="module")
async def crowd(engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Crowd]:
    folder: Path = tmp_path_factory.mktemp("crowd")
    config, database = folder / "cwm.yaml", folder / "cwm.db"
    config.write_text(yaml.safe_dump({"capture": {"mode": "all"}}))
    variables = {
        "CWM_API_KEYS": "true",
        "CWM_RATE_LIMIT_SESSION": "none",
        "CWM_RATE_LIMIT_PRINCIPAL": "none",
        "CWM_CONFIG": str(config),
    }
    async with AsyncExitStack() as stack:
        gateway = stack.enter_context(served(engine, database, "acme", **variables))
        loaded = settings.load({"CWM_DB_PATH": str(database), "CWM_SECRET_FILE": str(folder / "secret")})
        keys = await stack.enter_async_context(opened_keys(loaded))
        scopes = granted(["sessions:write", "windows:read"])
        made = [await keys.create("acme", f"person-{number}", scopes, None) for number in range(PEOPLE)]
        yield Crowd(gateway, tuple(text for _, text in made))


@pytest.mark.parametrize("named", NAMES, ids=["unnamed", "claude-code", "codex"])
async def test_people_who_say_the_same_share_no_conversation(crowd: Crowd, named: dict[str, str]) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def converse(number: int) -> tuple[str, str]:
        async with places:
            return await crowd.converse(number, named)

    sessions = await asyncio.gather(*map(converse, range(PEOPLE)))
    assert all(begun == gone_on for begun, gone_on in sessions)
    assert Counter(begun for begun, _ in sessions).most_common(1)[0][1] == 1
    for number in range(0, PEOPLE, 7):
        async with talk(crowd.gateway.url, crowd.gateway.model, key=crowd.keys[number]) as own:
            log = (await own.tool("turn_log", session_id=sessions[number][0]))["turns"]
            assert [turn["relation"] for turn in log] == ["continues", "begins"]
            mine = {each["id"] for each in (await own.tool("session_list"))["sessions"]}
            assert {session for session, _ in sessions} & mine == {sessions[number][0]}
