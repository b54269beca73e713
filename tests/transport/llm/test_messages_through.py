"""Anthropic's Messages API through the gateway, over a socket: what passes, what is recorded, and what is refused in its words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from sqlalchemy import update

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.tables.turns import turn_contents
from cwm.adapters.vllm.turns.messages.request import MessagesRequest
from cwm.domain.access import EVERY
from cwm.domain.conversation import Capture, CapturePolicies
from cwm.domain.limits import LimitRules, Rate
from cwm.domain.model_aliases import ModelAliases
from cwm.domain.principal import Principal
from cwm.domain.session import SessionQuery
from cwm.domain.turn import TurnQuery
from cwm.services.turns.finding.calling_conversation import CallingConversation
from cwm.services.turns.finding.tool_caller import ToolCaller
from tests.adapters.vllm.fake_messages import prompt_ids
from tests.adapters.vllm.fake_vllm import ANSWER, MAX_MODEL_LEN, MODEL, Behaviour, FakeVllm
from tests.transport.llm.gateway import MAX_BODY_BYTES, TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

MESSAGES: Final = "/v1/messages"
COUNT: Final = "/v1/messages/count_tokens"
CLAUDE: Final = {"X-Claude-Code-Session-Id": "00000000-0000-4000-8000-000000000000"}
HEY: Final = {"role": "user", "content": "hey"}
ON: Final = {
    "role": "user",
    "content": [{"type": "text", "text": "on", "cache_control": {"type": "ephemeral"}}],
}
TOOL: Final = {"name": "look", "input_schema": {"type": "object"}}
FORCED: Final = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "look"}}
WORDS: Final = tuple(range(1000, 1000 + len(ANSWER)))
BOTH: Final = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def cwm(vllm: FakeVllm, tmp_path: Path) -> AsyncIterator[Gateway]:
    capture = CapturePolicies(Capture.ALL)
    async with gateway(settings_for(vllm.url), tmp_path, capture=capture) as running:
        yield running


def ask(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": len(ANSWER), "messages": list(messages or (HEY,)), **more}


def events_of(answer: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def said_in(answer: httpx2.Response, *, stream: bool) -> list[dict[str, Any]]:
    """The content as the SDK joins it."""
    if not stream:
        return list(answer.json()["content"])
    events = events_of(answer)
    block = next(e["content_block"] for e in events if e["type"] == "content_block_start")
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    if block["type"] == "text":
        return [{**block, "text": "".join(delta["text"] for delta in deltas)}]
    return [{**block, "input": json.loads("".join(delta["partial_json"] for delta in deltas))}]


async def straight(vllm: FakeVllm, asked: dict[str, Any]) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(vllm.url + MESSAGES, json=asked)


async def turns_of(cwm: Gateway, session_id: str) -> list[tuple[int, int, bool]]:
    """Prompt and total tokens of a session's turns, the first first, and whether they continue one."""
    turns = await cwm.registry.turns(TENANT, session_id, TurnQuery())
    return [(turn.prompt_tokens, turn.total_tokens, turn.continues) for turn in reversed(turns)]


@BOTH
@pytest.mark.parametrize("more", [{}, FORCED])
@pytest.mark.parametrize("behaviour", [Behaviour.NORMAL, Behaviour.SPLITS_EVERY_BYTE])
async def test_an_answer_arrives_as_the_engine_gives_it_and_is_recorded(
    cwm: Gateway, vllm: FakeVllm, behaviour: Behaviour, more: dict[str, Any], *, stream: bool
) -> None:
    asked = ask(stream=stream, **more)
    own = await straight(vllm, asked)
    vllm.behaviour = behaviour
    answer = await cwm.client.post(f"{MESSAGES}?beta=true", json=asked, headers=CLAUDE)
    assert (answer.status_code, answer.content) == (200, own.content)
    assert answer.headers["content-type"] == own.headers["content-type"]
    assert "cwm-token-ids" not in answer.headers
    session = answer.headers["cwm-session-id"]
    assert session == CLAUDE["X-Claude-Code-Session-Id"]
    assert await cwm.tokens(session) == (*prompt_ids(asked), *WORDS)
    assert vllm.turns[-1].target == f"{MESSAGES}?beta=true"


@BOTH
async def test_the_next_request_extends_the_conversation_that_it_carries(
    cwm: Gateway, *, stream: bool
) -> None:
    first = await cwm.client.post(MESSAGES, json=ask(stream=stream, **FORCED))
    content = said_in(first, stream=stream)
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "42"}
    later: list[dict[str, Any]] = [
        HEY,
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result]},
    ]
    second = await cwm.client.post(MESSAGES, json=ask(*later, **FORCED))
    assert "cwm-diverged-at" not in second.headers
    assert second.headers["cwm-session-id"] == first.headers["cwm-session-id"]
    turn = await cwm.registry.current_turn(TENANT, first.headers["cwm-session-id"])
    assert turn is not None
    assert [message.content["role"] for message in await cwm.registry.turn_messages(turn)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


async def test_a_chat_goes_on_with_what_was_said_in_messages(cwm: Gateway) -> None:
    first = await cwm.client.post(MESSAGES, json=ask())
    said = {"role": "assistant", "content": first.json()["content"][0]["text"]}
    chat = {"model": MODEL, "messages": [HEY, said, {"role": "user", "content": "on"}]}
    second = await cwm.client.post("/v1/chat/completions", json=chat)
    assert second.headers["cwm-session-id"] == first.headers["cwm-session-id"]


async def test_a_tool_use_tells_which_conversation_its_caller_is_in(cwm: Gateway) -> None:
    answer = await cwm.client.post(MESSAGES, json=ask(**FORCED))
    await cwm.client.post(MESSAGES, json=ask(ON))
    calling = CallingConversation(cwm.registry, SystemClock())
    principal = Principal(TENANT, "agent", EVERY)
    found = await calling(principal, ToolCaller(None, "call_1", "look", {}))
    assert found == answer.headers["cwm-session-id"]


async def test_a_damaged_answer_hides_no_other_whose_call_it_is(cwm: Gateway) -> None:
    damaged = await cwm.client.post(MESSAGES, json=ask({"role": "user", "content": "elsewhere"}, **FORCED))
    answer = await cwm.client.post(MESSAGES, json=ask(**FORCED))
    session_id = damaged.headers["cwm-session-id"]
    assert session_id != answer.headers["cwm-session-id"]
    lost = update(turn_contents).where(turn_contents.c.session_id == session_id).values(packed=b"\x00")
    await cwm.database.write(lambda connection: connection.execute(lost))
    calling = CallingConversation(cwm.registry, SystemClock())
    (call_id,) = [block["id"] for block in answer.json()["content"] if block["type"] == "tool_use"]
    found = await calling(Principal(TENANT, "agent", EVERY), ToolCaller(None, call_id, "look", {}))
    assert found == answer.headers["cwm-session-id"]


@BOTH
async def test_an_alias_is_what_the_answer_calls_its_model_and_nothing_else(
    cwm: Gateway, vllm: FakeVllm, *, stream: bool
) -> None:
    cwm.directory.aliases = ModelAliases({"claude-*": MODEL})
    asked = ask(stream=stream, **FORCED)
    own = await straight(vllm, asked)
    answer = await cwm.client.post(MESSAGES, json={**asked, "model": "claude-x"})
    if stream:
        events = events_of(own)
        events[0]["message"]["model"] = "claude-x"
        assert events_of(answer) == events
    else:
        # The tool is called with the name of the served model.
        assert answer.json() == {**own.json(), "model": "claude-x"}
    assert vllm.turns[-1].json["model"] == MODEL


async def test_an_answer_that_may_be_longer_than_the_model_takes_is_capped_and_that_is_said(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    thinking = {"type": "enabled", "budget_tokens": 31999}
    answer = await cwm.client.post(MESSAGES, json=ask(max_tokens=32000, thinking=thinking))
    assert answer.headers["cwm-max-tokens"] == str(MAX_MODEL_LEN)
    sent = vllm.turns[0].json
    assert (sent["max_tokens"], sent["thinking"]["budget_tokens"]) == (MAX_MODEL_LEN, MAX_MODEL_LEN - 1)


@BOTH
async def test_a_count_is_forwarded_and_belongs_to_no_session(
    cwm: Gateway, vllm: FakeVllm, *, stream: bool
) -> None:
    cwm.directory.aliases = ModelAliases({"claude-*": MODEL})
    answer = await cwm.client.post(
        COUNT, json={"model": "claude-x", "messages": [HEY, ON], "stream": stream}, headers=CLAUDE
    )
    assert answer.json()["input_tokens"] == len("heyon")
    assert vllm.seen[-1].json["model"] == MODEL
    assert "cache_salt" not in vllm.seen[-1].json
    assert not {"cwm-session-id", "cwm-turn"} & answer.headers.keys()
    assert not await cwm.registry.sessions(TENANT, SessionQuery())


async def test_a_count_is_a_request_and_costs_no_tokens(vllm: FakeVllm, tmp_path: Path) -> None:
    rules = LimitRules(principal=(Rate(2, 60),), principal_tokens=(Rate(1, 60),))
    async with gateway(settings_for(vllm.url), tmp_path, rules=rules) as cwm:
        answers = [await cwm.client.post(COUNT, json=ask()) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["error"]["type"] == "rate_limit_error"
    assert int(answers[2].headers["retry-after"]) > 0
    assert answers[2].json()["error"]["code"] == "CWM-7001"


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_refusals_have_the_shape_and_the_words_of_the_api(
    cwm: Gateway, vllm: FakeVllm, path: str
) -> None:
    async def refusal(**request: Any) -> tuple[int, str, str]:
        answer = await cwm.client.post(path, **request)
        body = answer.json()
        assert body["type"] == "error"
        return answer.status_code, body["error"]["type"], body["error"]["message"]

    status, kind, message = await refusal(json=ask(mcp_servers=[{}]))
    assert (status, kind) == (400, "invalid_request_error")
    assert message == "mcp_servers: Extra inputs are not permitted"
    status, kind, message = await refusal(content=b"{")
    assert (status, kind) == (400, "invalid_request_error")
    assert message.startswith("The request body is not valid JSON")
    assert (await refusal(content=b" " * (MAX_BODY_BYTES + 1)))[:2] == (413, "request_too_large")
    vllm.behaviour = Behaviour.HANGS_UP_ON_EVERY_REQUEST
    assert (await refusal(json=ask()))[:2] == (529, "overloaded_error")


@pytest.mark.parametrize(
    ("status", "error", "kind", "message"),
    [
        (
            400,
            {
                "type": "BadRequestError",
                "message": "This model's maximum context length is 8192 tokens. However, your prompt contains at "
                "least 8193 input tokens, which exceeds this limit even without any output tokens.",
            },
            "invalid_request_error",
            "prompt is too long: 8193 tokens > 8192 maximum",
        ),
        (
            400,
            {
                "type": "BadRequestError",
                "message": "This model's maximum context length is 8192 tokens. However, your prompt contains 999999 "
                "characters (more than 90000 characters, which is the upper bound for 8192 input tokens).",
            },
            "invalid_request_error",
            "prompt is too long: 8193 tokens > 8192 maximum",
        ),
        (
            400,
            {
                "message": "2 validation errors:\n  {'type': 'list_type', 'loc': 'body.messages.0.content', 'msg': "
                "'Input should be a valid list', 'input': '5'}\n  {'type': 'missing', 'loc': 'body.max_tokens', "
                "'msg': 'Field required', 'input': '{}'}",
                "type": "Bad Request",
                "param": "body.messages.0.content",
                "code": 400,
            },
            "invalid_request_error",
            "messages.0.content: Input should be a valid list; max_tokens: Field required",
        ),
        (
            404,
            {"type": "NotFoundError", "message": "The model `nope` does not exist."},
            "not_found_error",
            "model: fake",
        ),
        (429, {"message": "Too many"}, "rate_limit_error", "Too many"),
        (500, {"type": "InternalServerError", "message": "Engine died"}, "api_error", "Engine died"),
        (503, {"message": "Busy"}, "overloaded_error", "Busy"),
    ],
)
def test_what_the_engine_refuses_is_worded_as_the_api_words_it(
    status: int, error: dict[str, Any], kind: str, message: str
) -> None:
    answer = MessagesRequest({"model": MODEL}, b"{}", 1).answer(status=status, streamed=False, recorded=True)
    assert answer.feed(json.dumps({"error": error}).encode()) == b""
    assert json.loads(answer.finish()) == {"type": "error", "error": {"type": kind, "message": message}}
    assert answer.token_ids() is None


async def test_an_unknown_model_is_named(cwm: Gateway) -> None:
    answer = await cwm.client.post(MESSAGES, json={**ask(), "model": "nope"})
    assert answer.status_code == 404
    assert answer.json()["error"] == {"type": "not_found_error", "message": "model: nope"}


async def test_a_stream_that_breaks_off_ends_with_an_error_event_and_is_kept(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.DIES_MID_STREAM
    answer = await cwm.client.post(MESSAGES, json=ask(stream=True), headers=CLAUDE)
    assert "event: error\n" in answer.text
    last = events_of(answer)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
    assert last["error"]["code"] == "CWM-5001"
    ((prompt, total, _),) = await turns_of(cwm, answer.headers["cwm-session-id"])
    assert prompt < total < prompt + len(WORDS)


@BOTH
async def test_a_client_that_leaves_is_recorded_with_what_it_got(
    cwm: Gateway, vllm: FakeVllm, *, stream: bool
) -> None:
    vllm.aborts, vllm.weights = True, "w-1"
    vllm.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN if stream else Behaviour.WAITS_BEFORE_ANSWERING
    sending = asyncio.create_task(cwm.client.post(MESSAGES, json=ask(stream=stream), headers=CLAUDE))
    async with asyncio.timeout(10):
        await vllm.waiting.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    if stream:
        vllm.release.set()
    await cwm.pass_through.drain(20)
    tokens = await cwm.tokens(CLAUDE["X-Claude-Code-Session-Id"])
    assert tokens[:4] == (*b"hey", 1000)
    assert len(tokens) < 3 + len(WORDS)
    if not stream:
        assert vllm.aborted == [f"chatcmpl-{vllm.turns[0].headers['x-request-id']}"]


@BOTH
async def test_an_engine_without_the_middleware_has_its_prompts_recorded_and_that_is_said(
    cwm: Gateway, vllm: FakeVllm, *, stream: bool
) -> None:
    vllm.middleware = False
    answer = await cwm.client.post(MESSAGES, json=ask(stream=stream), headers=CLAUDE)
    assert answer.headers["cwm-recorded"] == "prompt"
    session = answer.headers["cwm-session-id"]
    content = said_in(answer, stream=stream)
    later = ask(HEY, {"role": "assistant", "content": content}, ON, stream=stream)
    second = await cwm.client.post(MESSAGES, json=later, headers=CLAUDE)
    assert "cwm-diverged-at" not in second.headers
    whole = len(prompt_ids(later))
    assert await turns_of(cwm, session) == [(3, 3, False), (whole, whole, True)]
    assert await cwm.tokens(session) == tuple(prompt_ids(later))
    turn = await cwm.registry.current_turn(TENANT, session)
    assert turn is not None
    assert [m.content["role"] for m in await cwm.registry.turn_messages(turn)] == ["user", "assistant"] * 2
    noted = [e.outcome for e in await cwm.audit.events(TENANT, 10) if e.event == "session.turn"]
    assert noted == ["prompt_recorded"] * 2


async def test_models_have_the_shape_of_the_api_for_its_clients(cwm: Gateway) -> None:
    cwm.directory.aliases = ModelAliases({"claude-5": MODEL, "claude-*": MODEL})
    version = {"anthropic-version": "2023-06-01"}
    page = (await cwm.client.get("/v1/models", headers=version)).json()
    assert [model["id"] for model in page["data"]] == [MODEL, "claude-5"]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, MODEL, "claude-5")
    one = (await cwm.client.get("/v1/models/claude-z", headers=version)).json()
    assert (one["type"], one["id"], one["display_name"]) == ("model", "claude-z", "claude-z")
    assert one["created_at"].endswith("Z")
    missing = await cwm.client.get("/v1/models/nope", headers=version)
    assert missing.status_code == 404
    assert missing.json() == {"type": "error", "error": {"type": "not_found_error", "message": "model: nope"}}
    assert (await cwm.client.get("/v1/models")).json()["object"] == "list"
