"""Repairs of requests of each protocol: what they change, and what stays as it was sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cwm.adapters.vllm.turns.openai.request import OpenAiRequest
from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.domain.errors import InvalidParameterError
from cwm.domain.habits import Repair
from cwm.ports.turn_wire import TurnRequest

CHAT, MESSAGES, RESPONSES, COUNT = (
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/messages/count_tokens",
)
BLOCK = "x-anthropic-billing-header: cc_version=2.1.197.0df; cc_entrypoint=sdk-cli;"
HEY = {"role": "user", "content": "hey"}
BOTH = tuple(Repair)
SAMPLES = Path(__file__).parent / "samples"


def part(text: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": text}


def system(content: Any, role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": content}


def read(path: str, fields: dict[str, Any]) -> TurnRequest:
    return VllmWire().read(path, json.dumps(fields).encode())


def sent(request: TurnRequest) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(request.body("salt", weights="", recorded=False))
    return fields


@pytest.mark.parametrize(
    ("path", "name", "value", "repaired"),
    [
        (CHAT, "messages", [system(f"{BLOCK}\nBe terse."), HEY], [system("Be terse."), HEY]),
        (CHAT, "messages", [system(f"{BLOCK}Be terse."), HEY], [system("Be terse."), HEY]),
        (CHAT, "messages", [system(BLOCK), system("Be terse."), HEY], [system("Be terse."), HEY]),
        (
            CHAT,
            "messages",
            [system([part(BLOCK), part("Be terse.")]), HEY],
            [system([part("Be terse.")]), HEY],
        ),
        (CHAT, "messages", [system([part(BLOCK)], "developer"), HEY], [HEY]),
        (MESSAGES, "system", f"{BLOCK}\nBe terse.", "Be terse."),
        (MESSAGES, "system", BLOCK, ""),
        (MESSAGES, "system", [part(BLOCK), part("Be terse.")], [part("Be terse.")]),
        (MESSAGES, "messages", [HEY, system(f"{BLOCK}\nBe terse.")], [HEY, system("Be terse.")]),
        (COUNT, "system", f"{BLOCK}\nBe terse.", "Be terse."),
        (RESPONSES, "instructions", f"{BLOCK}\nBe terse.", "Be terse."),
        (
            RESPONSES,
            "input",
            [system([part(BLOCK, "input_text"), part("Be terse.", "input_text")], "developer"), HEY],
            [system([part("Be terse.", "input_text")], "developer"), HEY],
        ),
    ],
)
def test_the_billing_block_is_left_out(path: str, name: str, value: Any, repaired: Any) -> None:
    fields = {"input": "hey"} if path == RESPONSES else {"messages": [HEY], "max_tokens": 8}
    request = read(path, {**fields, name: value}).repaired(BOTH)
    assert request.repairs == (Repair.BILLING_BLOCK,)
    assert sent(request)[name] == repaired
    assert "billing" not in "".join(request.texts())


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("c*_turn*.json")))
def test_of_a_real_client_s_request_only_its_block_is_left_out(name: str) -> None:
    recorded = json.loads((SAMPLES / f"{name}.json").read_text())
    request = read(recorded.get("path", RESPONSES), recorded.get("body", recorded))
    before, after = sent(request), sent(request.repaired([Repair.BILLING_BLOCK]))
    if "claude" in name:
        assert before["system"][0]["text"].startswith("x-anthropic-billing-header:")
        before["system"] = before["system"][1:]
    assert after == before


def chat_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def messages_tool(name: str) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}}


def responses_tool(name: str) -> dict[str, Any]:
    if name == "namespace":
        return {"type": name, "tools": []}
    return {"type": "function", "name": name, "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "tool"), [(CHAT, chat_tool), (MESSAGES, messages_tool), (RESPONSES, responses_tool)]
)
def test_tools_are_sent_in_the_order_of_their_names(path: str, tool: Any) -> None:
    names = ["write", "namespace", "bash"]
    fields = {"input": "hey"} if path == RESPONSES else {"messages": [HEY], "max_tokens": 8}
    request = read(path, {**fields, "tools": [tool(name) for name in names]})
    repaired = request.repaired(BOTH)
    assert repaired.repairs == (Repair.TOOL_ORDER,)
    assert sent(repaired)["tools"] == [tool(name) for name in sorted(names)]
    assert repaired.profile().agent == request.profile().agent
    in_order = read(path, {**fields, "tools": [tool(name) for name in sorted(names)]})
    assert repaired.profile() == in_order.profile()


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [system("Be terse."), HEY], "tools": [chat_tool("a"), chat_tool("b")]},
        {"messages": [{"role": "user", "content": f"{BLOCK}\nWhat is this?"}]},
        {"messages": [system(f"It says '{BLOCK}'."), HEY], "tools": None},
        {"messages": [system(None), system(""), system([]), HEY, "odd"], "tools": "odd"},
        {"messages": "odd", "tools": ["odd", 3]},
    ],
)
def test_what_needs_no_repair_keeps_its_bytes(fields: dict[str, Any]) -> None:
    raw = json.dumps(fields, indent=1).encode()
    request = VllmWire().read(CHAT, raw)
    assert request.repaired(BOTH) is request
    assert request.body("salt", weights="", recorded=False).startswith(raw[:-1].rstrip())


def test_only_wanted_repairs_are_made() -> None:
    fields = {"messages": [system(f"{BLOCK}\nBe terse."), HEY], "tools": [chat_tool("b"), chat_tool("a")]}
    request = read(CHAT, fields)
    ordered, both = request.repaired([Repair.TOOL_ORDER]), request.repaired(BOTH)
    assert (ordered.repairs, both.repairs) == ((Repair.TOOL_ORDER,), BOTH)
    assert sent(ordered)["messages"] == fields["messages"]
    assert sent(both) == {
        "messages": [system("Be terse."), HEY],
        "tools": fields["tools"][::-1],
        "cache_salt": "salt",
    }


def test_other_fields_arrive_with_their_values() -> None:
    text = '{"messages": [%s, {"role": "user", "content": "\\ud83d\\ude00 \\u00e9"}], "temperature": 0.1, "seed": %d, "top_p": 1.0}'
    request = VllmWire().read(CHAT, (text % (json.dumps(system(f"{BLOCK}\nBe.")), 10**30)).encode())
    before, after = sent(request), sent(request.repaired(BOTH))
    assert after == {**before, "messages": [system("Be."), before["messages"][1]]}


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    fields = {"messages": [system(f"{BLOCK}\nBe."), HEY], "documents": deep}
    request = OpenAiRequest(fields, b"{}", 1, operation="chat")
    with pytest.raises(InvalidParameterError, match="nested too deeply"):
        request.repaired(BOTH)
