"""What is hard to show: halves of surrogate pairs, controls, numbers beyond JSON, hundreds of levels, in fields that the engine ignores.

Each is refused with a code when it comes, or every face can read it later; so can it what was recorded without that rule.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.app import assemble
from cwm.domain.budgets import Budgets
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.domain.results import Part, PartKind
from cwm.domain.showable import DEEPEST, flaw
from cwm.domain.tool_policy import ToolPolicies, ToolPolicy
from cwm.domain.turn import Turn
from cwm.settings import ABSENT, Database, Engine, Isolation, Retention, Settings
from cwm.wiring.parts import Parts, build_parts
from tests.adapters.vllm.fake_vllm import FakeVllm, fake_vllm
from tests.cli.command import cwm
from tests.transport.console.scenes import Scene, assistant, opened, user
from tests.transport.mcp.gateway import serving
from tests.transport.mcp.wire import Wire, wired

pytestmark = pytest.mark.slow

LOCAL: Final = Principal("default", "local")
LEVELS: Final = [1, 2, 60, 100, 150, 156, 157, 158, 161, 170, 200, 255, 300, 700, 960, 5_000]
LEAVES: Final = [
    r'"\ud83d"',
    r'"\udc00 and \u0000 and \u001b[2J"',
    r'"\ud83d\ude00"',
    '"\u202e\x7f\u2028"',
    r'"[[[\"\\\" ]]"',
    "1e999",
    "-1e999",
    "-0.0",
    "9" * 400,
    "true",
    "null",
    "{}",
    "[]",
    r'{"\ud83d": 1}',
    r'{"\u0000": "\u0000"}',
]
OPENINGS: Final = [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]"), (r'{"\u0000":', "}")]
# The text of a value that is awkward to show, as JSON.
awkward = st.builds(
    lambda leaf, opening, levels: opening[0] * levels + leaf + opening[1] * levels,
    st.sampled_from(LEAVES),
    st.sampled_from(OPENINGS),
    st.sampled_from([0, 0, *LEVELS]),
)

CHAT, MESSAGES, RESPONSES, CONVERSATIONS = (
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/conversations",
)
SAID: Final = '{"role":"user","content":"hi"}'
PLACES: Final = {
    "a field of a message": (CHAT, '{"model":"fake","max_tokens":2,"messages":[{"role":"user","content":"hi","zz":%s}]}'),
    "a name": (CHAT, '{"model":"fake","max_tokens":2,"messages":[{"role":"user","content":"hi","name":%s}]}'),
    "reasoning": (CHAT, '{"model":"fake","max_tokens":2,"messages":[{"role":"assistant","content":"x","reasoning":%s},' + SAID + "]}"),
    "tool calls": (CHAT, '{"model":"fake","max_tokens":2,"messages":[{"role":"assistant","content":"x","tool_calls":%s},' + SAID + "]}"),
    "arguments": (
        CHAT,
        '{"model":"fake","max_tokens":2,"messages":[{"role":"assistant","content":"x","tool_calls":[{"id":"c","type":"function",'
        '"function":{"name":"f","arguments":%s}}]},' + SAID + "]}",
    ),
    "a part": (CHAT, '{"model":"fake","max_tokens":2,"messages":[{"role":"user","content":[{"type":"text","text":"hi","zz":%s}]}]}'),
    "metadata": (CHAT, '{"model":"fake","max_tokens":2,"metadata":{"a":%s},"messages":[' + SAID + "]}"),
    "tools": (CHAT, '{"model":"fake","max_tokens":2,"tools":[{"type":"function","function":{"name":"f"},"zz":%s}],"messages":[' + SAID + "]}"),
    "a field of Anthropic's message": (MESSAGES, '{"model":"fake","max_tokens":2,"messages":[{"role":"user","content":"hi","zz":%s}]}'),
    "the input of a tool": (
        MESSAGES,
        '{"model":"fake","max_tokens":2,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":%s}}]},'
        + SAID + "]}",
    ),
    "an item": (RESPONSES, '{"model":"fake","input":[{"role":"user","content":"hi","zz":%s}]}'),
    "metadata of a response": (RESPONSES, '{"model":"fake","input":"hi","metadata":{"a":%s}}'),
    "the output of a call": (
        RESPONSES,
        '{"model":"fake","input":[' + SAID + ',{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"x","zz":%s}]}]}',
    ),
    "an item of a conversation": (CONVERSATIONS, '{"items":[{"role":"user","content":"hi","zz":%s}]}'),
    "metadata of a conversation": (CONVERSATIONS, '{"metadata":{"a":%s}}'),
}  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class House:
    """A whole gateway in front of a vLLM that answers whatever it is asked."""

    folder: Path
    http: httpx2.AsyncClient
    wire: Wire
    parts: Parts
    vllm: FakeVllm
    mcp_session: str
    numbers: Iterator[int] = field(default_factory=count)

    async def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a tool, read as strictly as any client would."""
        answer = await self.wire.ask(self.mcp_session, "tools/call", name=name, arguments=arguments)
        (line,) = [line for line in answer.text.splitlines() if line.startswith("data:")]
        result = from_json(line.removeprefix("data:").strip())["result"]
        assert not result.get("isError"), (name, result)
        return dict(result["structuredContent"])

    async def read(self, path: str) -> Any:
        answer = await self.http.get(path)
        assert answer.status_code == 200, (path, answer.text)
        return from_json(answer.content)

    async def page(self, path: str) -> str:
        answer = await self.http.get(f"/console{path}")
        assert answer.status_code == 200, (path, answer.text)
        return answer.text

    async def require_readable(self, session_id: str) -> dict[str, Any]:
        """Read all of a session on every face; what turn_show answers."""
        shown = await self.tool("turn_show", session_id=session_id, include_tokens=True)
        await self.tool("turn_show", session_id=session_id, message_format="anthropic")
        log = await self.tool("turn_log", session_id=session_id)
        assert log["turns"]
        found = await self.tool("turn_search", query="hi", session_id=session_id, include_messages=True)
        assert found["results"]
        turn = shown["turn"]["id"]
        await self.tool("turn_diff", left=f"turn:{turn}", right=f"session:{session_id}")
        resource = await self.wire.ask(self.mcp_session, "resources/read", uri=f"cwm://turns/{turn}")
        assert "error" not in from_json(resource.text.partition("data:")[2].strip()), resource.text
        for path in (f"/conversations/{session_id}", f"/turns/{turn}", "/conversations?search=hi"):
            await self.page(path)
        await self.page(f"/turns/{turn}/export")
        for message_format in ("openai", "anthropic"):
            assert json.loads(await self.page(f"/turns/{turn}/export?as={message_format}"))["messages"]
        return shown


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("awkward")
    shutil.copyfile(sqlite_template, folder / "cwm.db")
    # What is deep has many tokens, and a preview of it would be no answer to these tests.
    policies = {"context_set": ToolPolicy(references=True), "turn_show": ToolPolicy(max_tokens=None)}
    async with fake_vllm() as vllm:
        chosen = Settings(
            database=Database(db_path=folder / "cwm.db"),
            engine=Engine(vllm_url=vllm.url, lmcache_url=ABSENT, coordinator_url=ABSENT),
            isolation=Isolation(secret="a test's secret"),
            retention=Retention(reconcile_seconds=86_400),
            budgets=Budgets(policies=ToolPolicies(by_name=policies)),
        )
        parts = build_parts(chosen)
        app = assemble(chosen, parts)
        async with serving(app, app.state.end_streams) as url, wired(url) as wire:
            yield House(folder, wire.http, wire, parts, vllm, await wire.session())


thorough = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("place", PLACES)
@thorough
@given(awkward)
async def test_what_comes_is_refused_with_a_code_or_read_on_every_face(
    house: House, place: str, value: str
) -> None:
    path, body = PLACES[place]
    session_id = f"s-{next(house.numbers)}"
    asked = len(house.vllm.turns)
    answer = await house.http.post(
        path,
        content=(body % value).encode(),
        headers={"content-type": "application/json", "cwm-session-id": session_id},
    )
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert answer.status_code == 400, answer.text
        assert error.get("code", error.get("type")) in {"CWM-1003", "invalid_request_error"}, answer.text
        assert len(house.vllm.turns) == asked
        return
    if "surrogate" in (fault := flaw(json.loads(value)) or ""):
        # A half has become a whole character, before the engine got it.
        assert answer.headers["cwm-repaired"] == "half_characters"
        assert flaw(house.vllm.turns[-1].json) is None
    else:
        assert fault == ""
    if path == CONVERSATIONS:
        conversation = answer.json()["id"]
        await house.read(f"{CONVERSATIONS}/{conversation}")
        await house.read(f"{CONVERSATIONS}/{conversation}/items")
        return
    if path == RESPONSES:
        response = answer.json()["id"]
        await house.read(f"{RESPONSES}/{response}")
        await house.read(f"{RESPONSES}/{response}/input_items")
    await house.require_readable(session_id)


async def recorded(house: House, value: Any) -> tuple[Scene, Turn]:
    """A turn that was recorded without a rule about what it may hold."""
    scene = await opened(house.parts.base.registry, f"old-{next(house.numbers)}")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps(value)}}
    said = assistant("hi", tool_calls=[call], zz=value)
    return scene, await scene.turn(user("hi"), said)


@pytest.mark.parametrize("levels", [0, 170, 300, 800])
@pytest.mark.parametrize(
    "leaf", ["half of a pair: \ud83d", "\x00\x1b[2J", float("inf"), float("nan"), 10**400]
)
async def test_what_was_recorded_before_is_read_on_every_face(house: House, leaf: Any, levels: int) -> None:
    value = leaf
    for _ in range(levels):
        value = [value]
    scene, _ = await recorded(house, value)
    shown = await house.require_readable(scene.session.id)
    assert [message["content"] for message in shown["messages"]] == ["hi", "hi"]
    assert flaw(shown["messages"], DEEPEST + 20) is None


async def test_what_cannot_be_shown_is_shown_as_its_escape(house: House) -> None:
    scene, _ = await recorded(house, ["half of a pair: \ud83d", float("inf"), "whole: 😀\x00"])
    shown = await house.require_readable(scene.session.id)
    assert shown["messages"][1]["zz"] == ["half of a pair: \\ud83d", "Infinity", "whole: 😀\x00"]


async def test_what_is_too_deep_is_shown_as_the_text_of_its_json(house: House) -> None:
    value: Any = 'said "[\\"'
    for _ in range(300):
        value = {"a": [value]}
    scene, _ = await recorded(house, value)
    shown = (await house.require_readable(scene.session.id))["messages"][1]["zz"]
    while not isinstance(shown, str):
        value, shown = (value["a"], shown["a"]) if isinstance(shown, dict) else (value[0], shown[0])
    assert json.loads(shown) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 300 + "]" * 300, "nested deeper than 64"),
        (r'["\ud83d"]', "half of a surrogate pair"),
        ("[1e999]", "a number that JSON does not have"),
    ],
)
async def test_a_reference_puts_nothing_into_an_argument_that_could_not_be_sent_in_it(
    house: House, text: str, why: str
) -> None:
    part = Part(PartKind.JSON, "application/json", text.encode())
    stored = await house.parts.agent_side.results.keep(LOCAL, "t", "", [part], ToolPolicy())
    arguments = {"key": "k", "scope": "tenant", "value": {"$cwm": f"{stored.handle}#"}}
    answer = await house.wire.ask(house.mcp_session, "tools/call", name="context_set", arguments=arguments)
    assert "CWM-1003" in answer.text, answer.text
    assert why in answer.text


async def test_a_person_is_exported_whatever_was_recorded(house: House) -> None:
    for value in ("\ud83d", float("nan"), json.loads("[" * 900 + "]" * 900)):
        await recorded(house, value)
    export = cwm(house.folder, "person", "export", "local")
    assert (export.returncode, export.stderr) == (0, "")
    records = [from_json(line) for line in export.stdout.splitlines()]
    assert {record["kind"] for record in records} >= {"session", "turn"}
    assert [record for record in records if "error" in record] == []


@given(awkward, st.sampled_from([place for place, (path, _) in PLACES.items() if path != CONVERSATIONS]))
@settings(max_examples=300)
def test_a_request_is_read_exactly_if_all_of_it_can_be_shown(value: str, place: str) -> None:
    path, body = PLACES[place]
    text = body % value
    try:
        fault = flaw(json.loads(text))
    except RecursionError:
        fault = "nested too deep to be read"
    # Halves of characters become whole ones.
    if fault is None or "surrogate" in fault:
        # A schema has limits of its own.
        with suppress(InvalidParameterError) if place == "tools" else nullcontext():
            VllmWire().read(path, text.encode())
        return
    with pytest.raises(InvalidParameterError) as refusal:
        VllmWire().read(path, text.encode())
    assert refusal.value.message.encode()
