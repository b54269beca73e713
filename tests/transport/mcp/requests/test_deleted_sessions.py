"""What is left of a session that was deleted: what its windows are gone on with by."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.adapters.vllm.fake_vllm import Behaviour, fake_vllm
from tests.contracts.nouns import LATER, recorded
from tests.transport.llm.gateway import settings_for
from tests.transport.mcp.gateway import fastmcp_agent, gateway

pytestmark = pytest.mark.slow

TEMPLATE: Final = {"cwm.template": {"has_system": True, "options": {"tools": [{"type": "function"}]}}}


async def test_a_window_is_gone_on_with_by_its_chat_template_also_when_its_session_was_deleted(
    tmp_path: Path, era: str
) -> None:
    async with (
        fake_vllm() as vllm,
        gateway(tmp_path, engine=settings_for(vllm.url)) as running,
        fastmcp_agent(running.url, era, "acme") as agent,
    ):
        registry = running.parts.base.registry
        assert not (await agent.call("session_create", {"session_id": "s"})).is_error
        turn = await recorded(registry, "acme", "s", (1, 2, 3), LATER, {"said": "secret", **TEMPLATE})
        assert turn is not None
        assert await registry.expire_session(turn, LATER)
        assert not (await agent.call("window_freeze", {"session_id": "s", "window_name": "w"})).is_error
        assert not (await agent.call("session_delete", {"session_id": "s"})).is_error
        assert await registry.session("acme", "s") is None
        thawed = (await agent.call("window_thaw", {"window_name": "w"})).value["session_id"]
        session = await registry.session("acme", thawed)
    assert session is not None
    assert {name: value for name, value in session.metadata.items() if name in TEMPLATE} == TEMPLATE
    assert "said" not in session.metadata


async def test_a_thaw_is_gone_on_with_by_its_chat_template_also_when_its_window_is_deleted_meanwhile(
    tmp_path: Path, era: str
) -> None:
    async with (
        asyncio.timeout(60),
        fake_vllm() as vllm,
        gateway(tmp_path, engine=settings_for(vllm.url)) as running,
        fastmcp_agent(running.url, era, "acme") as agent,
    ):
        registry = running.parts.base.registry
        assert not (await agent.call("session_create", {"session_id": "s"})).is_error
        await recorded(registry, "acme", "s", (1, 2, 3), LATER, TEMPLATE)
        assert not (await agent.call("window_freeze", {"session_id": "s", "window_name": "w"})).is_error
        vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
        thaw = asyncio.create_task(agent.call("window_thaw", {"window_name": "w", "new_session_id": "t"}))
        await vllm.waiting.wait()
        gone = await agent.call("window_delete", {"window_name": "w", "force": True})
        assert not gone.is_error
        assert not (await agent.call("session_delete", {"session_id": "s"})).is_error
        assert await registry.session("acme", "s", any_state=True) is None
        vllm.release.set()
        assert not (await thaw).is_error
        session = await registry.session("acme", "t")
    assert session is not None
    assert {name: value for name, value in session.metadata.items() if name in TEMPLATE} == TEMPLATE
    assert "said" not in session.metadata
