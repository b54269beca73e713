"""Habits of clients over a socket: the answer says by which one its request left what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cwm.domain.keep import KeepPolicies, KeepPolicy
from tests.adapters.vllm.fake_vllm import MODEL
from tests.transport.llm.gateway import TENANT, Gateway

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
SESSION = {"CWM-Session-Id": "s1"}


def system(day: str) -> dict[str, Any]:
    return {"role": "system", "content": f"You are an agent.\nToday's date: {day}"}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


async def headers_after(cwm: Gateway, one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, str]:
    """Those of the second turn: ``one`` and ``other`` are what the requests have beside the conversation."""
    said = [{"role": "user", "content": "hey"}]
    for fields in (one, other):
        messages = [*fields.get("system", ()), *said]
        body = {"model": MODEL, "tools": [tool("Read")], **fields, "messages": messages}
        body.pop("system", None)
        answer = await cwm.client.post(CHAT, json=body, headers=SESSION)
        said += [answer.json()["choices"][0]["message"], {"role": "user", "content": "on"}]
    return answer.headers


YESTERDAY, TODAY = {"system": [system("2026-11-25")]}, {"system": [system("2026-11-26")]}


async def test_another_date_is_named_in_the_header_and_counted(cwm: Gateway) -> None:
    headers = await headers_after(cwm, YESTERDAY, TODAY)
    assert headers["cwm-diverged-at"] == "0; role=system; cause=system_text; habit=date"
    assert cwm.meter.counts["event turn_habit_date"] == 1


async def test_other_words_are_no_habit(cwm: Gateway) -> None:
    headers = await headers_after(cwm, YESTERDAY, {"system": [{"role": "system", "content": "Be kind."}]})
    assert headers["cwm-diverged-at"] == "0; role=system; cause=system_text"


async def test_where_messages_are_not_kept_no_habit_is_named(cwm: Gateway) -> None:
    cwm.turns.keep = KeepPolicies(KeepPolicy(messages=False))
    headers = await headers_after(cwm, YESTERDAY, TODAY)
    assert headers["cwm-diverged-at"] == "0; role=system; cause=system_text"


async def test_another_order_of_the_same_tools_is_named(cwm: Gateway) -> None:
    tools = [tool("Read"), tool("Bash")]
    headers = await headers_after(cwm, {"tools": tools}, {"tools": tools[::-1]})
    assert headers["cwm-diverged-at"] == "0; cause=tool_order; habit=reordered_tools"
    turn = await cwm.registry.turn(TENANT, headers["cwm-turn"])
    assert turn is not None
    assert (turn.cause, turn.main) == ("tool_order", True)
