"""Requests that no engine answers: nobody sees the session that they opened, and its id goes on to be usable."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cwm.domain.conversation import Capture, CapturePolicies
from cwm.domain.session import SessionQuery
from tests.adapters.vllm.fake_vllm import MODEL, Behaviour, FakeVllm
from tests.transport.llm.gateway import TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
SESSION = {"CWM-Session-Id": "s1"}


def request(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hey"}], **more}


async def listed(cwm: Gateway) -> list[str]:
    totals = await cwm.registry.totals(TENANT)
    sessions = await cwm.registry.sessions(TENANT, SessionQuery())
    assert sum(totals.sessions.values()) == len(sessions)
    return [session.id for session in sessions]


@pytest.mark.parametrize("headers", [SESSION, {"x-session-id": "s1"}], ids=["ours", "the client's"])
async def test_a_refused_request_leaves_no_session_in_any_list(
    vllm: FakeVllm, tmp_path: Path, headers: dict[str, str]
) -> None:
    async with gateway(settings_for(vllm.url), tmp_path, capture=CapturePolicies(Capture.ALL)) as cwm:
        refused = await cwm.client.post(CHAT, json=request(max_tokens=0), headers=headers)
        assert refused.status_code == 400
        await cwm.turns_ended("s1")
        assert await listed(cwm) == []
        answered = await cwm.client.post(CHAT, json=request(), headers=headers)
        assert (answered.status_code, answered.headers["cwm-session-id"]) == (200, "s1")
        assert await listed(cwm) == ["s1"]
        await cwm.client.post(CHAT, json=request(max_tokens=0), headers=headers)
        assert await listed(cwm) == ["s1"]


async def test_a_session_whose_first_turn_runs_is_usable_and_in_no_list(cwm: Gateway, vllm: FakeVllm) -> None:
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    first = asyncio.create_task(cwm.client.post(CHAT, json=request(), headers=SESSION))
    await vllm.waiting.wait()
    assert await listed(cwm) == []
    vllm.behaviour = Behaviour.NORMAL
    beside = await cwm.client.post(CHAT, json=request(), headers={**SESSION, "CWM-Branch": "new"})
    assert beside.status_code == 200
    assert await listed(cwm) == ["s1"]
    vllm.release.set()
    assert (await first).status_code == 200
    assert await listed(cwm) == ["s1"]
