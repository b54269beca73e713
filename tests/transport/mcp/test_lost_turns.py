"""Turns by tool that end otherwise than asked: their callers hear whether they are part of the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.errors import CwmError
from tests.adapters.vllm.fake_vllm import Behaviour, FakeVllm, fake_vllm
from tests.contracts.nouns import LATER, a_window, recorded
from tests.transport.llm.gateway import settings_for
from tests.transport.mcp.gateway import Agent, Gateway, fastmcp_agent
from tests.transport.mcp.gateway import gateway as running_gateway

pytestmark = pytest.mark.slow

THEIRS: Final = (7, 8, 9)


async def expired(registry: SqlRegistry) -> None:
    session = await registry.session("acme", "s")
    assert session is not None
    assert await registry.expire_session(session, LATER)


CHANGES: Final[dict[str, Callable[[SqlRegistry], Awaitable[Any]]]] = {
    "another gateway's turn": lambda r: recorded(r, "acme", "s", THEIRS, LATER, revision=1),
    "a turn of the pass-through": lambda r: recorded(r, "acme", "s", THEIRS, LATER),
    "a freeze": lambda r: r.begin_freeze(a_window(session_id="s", salt_scope="tenant:acme"), THEIRS, 1),
    "an expiry": expired,
    "an end": lambda r: r.remove_session("acme", "s", LATER),
}


@pytest.fixture
async def vllm() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        yield fake


@pytest.fixture
async def gateway(tmp_path: Path, vllm: FakeVllm) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path, engine=settings_for(vllm.url)) as running:
        yield running


async def kept(registry: SqlRegistry) -> Any:
    """All that is known of the session."""
    try:
        return await registry.session("acme", "s"), await registry.session_tokens("acme", "s")
    except CwmError as gone:
        return gone.code


async def lost(gateway: Gateway) -> list[tuple[str, str, int]]:
    events = await gateway.parts.base.audit.events("acme", 100)
    return [
        (event.outcome, event.details["reason"], event.details["token_count"])
        for event in events
        if event.event == "session.turn"
    ]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_turn_whose_session_changed_meanwhile_is_told_as_a_conflict_and_written_down(
    gateway: Gateway, vllm: FakeVllm, era: str, change: str
) -> None:
    registry = gateway.parts.base.registry
    async with fastmcp_agent(gateway.url, era, "acme") as agent:
        await begun(agent)
        vllm.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN
        turn = asyncio.create_task(agent.call("session_generate", {"session_id": "s", "text": "more"}))
        await vllm.waiting.wait()
        await CHANGES[change](registry)
        changed = await kept(registry)
        vllm.release.set()
        answer = await turn
    assert answer.error["code"] == "CWM-3002"
    assert (answer.error["retryable"], answer.error["context"]) == (
        False,
        {"session_id": "s", "recorded": False},
    )
    assert await kept(registry) == changed
    assert await lost(gateway) == [("not_recorded", "session moved on or no longer live", 3 + 8 + 4 + 8)]


async def test_a_turn_that_the_engine_broke_off_is_not_lost_in_silence(
    gateway: Gateway, vllm: FakeVllm, era: str
) -> None:
    registry = gateway.parts.base.registry
    async with fastmcp_agent(gateway.url, era, "acme") as agent:
        await begun(agent)
        vllm.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN
        turn = asyncio.create_task(agent.call("session_generate", {"session_id": "s", "text": "more"}))
        await vllm.waiting.wait()
        await recorded(registry, "acme", "s", THEIRS, LATER)
        vllm.behaviour = Behaviour.DIES_MID_STREAM
        vllm.release.set()
        answer = await turn
    assert answer.error["code"].startswith("CWM-5")
    assert await registry.session_tokens("acme", "s") == THEIRS
    assert [outcome for outcome, *_ in await lost(gateway)] == ["not_recorded"]


async def begun(agent: Agent) -> None:
    """A session with one turn: three tokens said, eight answered."""
    await agent.call("session_create", {"session_id": "s"})
    assert not (await agent.call("session_generate", {"session_id": "s", "text": "hey"})).is_error


async def test_a_turn_that_the_engine_broke_off_is_told_as_kept_and_not_to_be_sent_again(
    gateway: Gateway, vllm: FakeVllm, era: str
) -> None:
    async with fastmcp_agent(gateway.url, era, "acme") as agent:
        await begun(agent)
        vllm.behaviour = Behaviour.DIES_MID_STREAM
        answer = await agent.call("session_generate", {"session_id": "s", "text": "more"})
        vllm.behaviour = Behaviour.HANGS_UP_WITHOUT_ANSWER
        unbegun = await agent.call("session_generate", {"session_id": "s", "text": "more"})
    kept = len(await gateway.parts.base.registry.session_tokens("acme", "s"))
    assert kept > 3 + 8 + 4
    assert answer.error["code"].startswith("CWM-5")
    assert "is kept in session 's'" in answer.error["message"]
    assert answer.error["retryable"] is False
    told = {"session_id": "s", "recorded": True, "token_count": kept}
    assert told.items() <= answer.error["context"].items()
    assert (unbegun.error["retryable"], "recorded" in unbegun.error["context"]) == (True, False)
