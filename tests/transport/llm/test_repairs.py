"""Repairs of chosen clients' requests, over a socket: what the engine gets, what is recorded, and what the answer says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cwm.domain.habits import Repair, RepairPolicies
from tests.adapters.vllm.fake_vllm import MODEL, FakeVllm
from tests.transport.llm.gateway import TENANT, Gateway

pytestmark = pytest.mark.slow

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
COUNT = f"{MESSAGES}/count_tokens"
HEY = {"role": "user", "content": "hey"}
CLIENT = {"CWM-Session-Id": "s1", "User-Agent": "claude-cli/2.1.197 (external, sdk-cli)"}
REPAIRS = RepairPolicies({"claude-cli*": tuple(Repair)}, {"other": {}})


def block(digest: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.197.{digest}; cc_entrypoint=sdk-cli;"


def tool(path: str, name: str) -> dict[str, Any]:
    function = {"name": name, "parameters": {"type": "object"}}
    if path == CHAT:
        return {"type": "function", "function": function}
    return (
        {"type": "function", **function}
        if path == RESPONSES
        else {"name": name, "input_schema": {"type": "object"}}
    )


def ask(path: str, digest: str, *names: str) -> dict[str, Any]:
    text = f"{block(digest)}\nBe terse."
    fields: dict[str, Any] = {"model": MODEL, "tools": [tool(path, name) for name in names]}
    if path == CHAT:
        return {**fields, "messages": [{"role": "system", "content": text}, HEY]}
    if path == RESPONSES:
        return {**fields, "instructions": text, "input": [HEY]}
    return {**fields, "max_tokens": 8, "system": text, "messages": [HEY]}


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_what_changes_at_each_start_does_not_reach_the_engine_nor_the_record(
    cwm: Gateway, vllm: FakeVllm, path: str
) -> None:
    cwm.pass_through.repairs = REPAIRS
    first = await cwm.client.post(path, json=ask(path, "0df", "Read", "Bash"), headers=CLIENT)
    again = await cwm.client.post(path, json=ask(path, "023", "Bash", "Read"), headers=CLIENT)
    assert first.status_code == again.status_code == 200
    assert first.headers["cwm-repaired"] == "billing_block, tool_order"
    assert again.headers["cwm-repaired"] == "billing_block"
    fields = ("messages", "system", "instructions", "input", "tools")
    one, other = ({name: json.loads(each.body).get(name) for name in fields} for each in vllm.turns)
    assert one == other
    assert b"billing" not in vllm.turns[0].body
    await cwm.turns_ended("s1")
    assert again.headers.get("cwm-diverged-at", "repeated").endswith("repeated")
    turn = await cwm.registry.turn(TENANT, first.headers["cwm-turn"])
    assert turn is not None
    messages = [message.content for message in await cwm.registry.turn_messages(turn)]
    assert messages[:2] == [{"role": "system", "content": "Be terse."}, HEY]


async def test_a_count_counts_what_would_be_sent(cwm: Gateway, vllm: FakeVllm) -> None:
    cwm.pass_through.repairs = REPAIRS
    counted = await cwm.client.post(COUNT, json=ask(MESSAGES, "0df"), headers=CLIENT)
    assert counted.headers["cwm-repaired"] == "billing_block"
    assert b"billing" not in vllm.turns[-1].body


@pytest.mark.parametrize(
    "headers", [{"User-Agent": "opencode/1.18.33"}, {**CLIENT, "x-tenant": "other"}, {"User-Agent": ""}]
)
async def test_a_client_that_is_not_chosen_is_sent_on_as_it_came(
    cwm: Gateway, vllm: FakeVllm, headers: dict[str, str]
) -> None:
    cwm.pass_through.repairs = REPAIRS
    body = json.dumps(ask(CHAT, "0df", "Read", "Bash"), indent=1).encode()
    answer = await cwm.client.post(
        CHAT, content=body, headers={**headers, "content-type": "application/json"}
    )
    assert "cwm-repaired" not in answer.headers
    assert vllm.turns[-1].body.startswith(body[:-2])


async def test_without_a_choice_nothing_is_repaired(cwm: Gateway, vllm: FakeVllm) -> None:
    answer = await cwm.client.post(CHAT, json=ask(CHAT, "0df", "Read", "Bash"), headers=CLIENT)
    assert "cwm-repaired" not in answer.headers
    assert block("0df").encode() in vllm.turns[-1].body
