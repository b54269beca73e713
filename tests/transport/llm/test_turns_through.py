"""Turns through the gateway: what the engine gets, what the client gets, what is recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import text, update

from cwm.adapters.sql.tables.sessions import sessions
from cwm.domain.audit import Severity
from cwm.domain.engine import CacheScope
from cwm.domain.session import SessionState
from tests.adapters.vllm.fake_vllm import LARGE, MAX_MODEL_LEN, MODEL, SPECIAL, Behaviour, FakeVllm
from tests.transport.llm.gateway import TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SESSION = {"CWM-Session-Id": "s1"}
ANSWER_IDS = tuple(range(1000, 1008))
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
STREAMED = pytest.mark.parametrize("stream", [False, True])


def request(path: str, **more: Any) -> dict[str, Any]:
    ask = {"messages": [{"role": "user", "content": "hey"}]} if path == CHAT else {"prompt": "hey"}
    return {"model": MODEL, **ask, **more}


async def direct(vllm: FakeVllm, path: str, body: dict[str, Any]) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(vllm.url + path, json=body)


@BOTH
@STREAMED
@pytest.mark.parametrize("headers", [{}, SESSION])
@pytest.mark.parametrize(
    "more", [{}, {"return_token_ids": True}, {"stream_options": {"include_usage": True}}]
)
async def test_the_client_gets_the_bytes_the_engine_would_have_sent(
    cwm: Gateway, vllm: FakeVllm, path: str, stream: bool, headers: dict[str, str], more: dict[str, Any]
) -> None:
    body = request(path, stream=stream, **more)
    through, straight = (
        await cwm.client.post(path, json=body, headers=headers),
        await direct(vllm, path, body),
    )
    assert through.content == straight.content
    assert through.status_code == straight.status_code
    hop = {"date", "server", "transfer-encoding", "content-length"}
    kept = {(k, v) for k, v in straight.headers.items() if k not in hop}
    added = {name for name, _ in through.headers.items() if name.startswith("cwm-")}
    assert {(k, v) for k, v in through.headers.items() if k not in hop | added} == kept
    assert added - {"cwm-cached-tokens"} == ({"cwm-session-id", "cwm-turn"} if headers else set())


@STREAMED
async def test_an_answer_says_which_turn_it_is_and_where_its_request_left_what_was_recorded(
    cwm: Gateway, stream: bool
) -> None:
    said: list[Any] = [{"role": "user", "content": "hey"}]
    first = await cwm.client.post(CHAT, json=request(CHAT), headers=SESSION)
    assert "cwm-diverged-at" not in first.headers
    said += [first.json()["choices"][0]["message"], {"role": "user", "content": "on"}]
    extended = await cwm.client.post(CHAT, json=request(CHAT, messages=said, stream=stream), headers=SESSION)
    assert "cwm-diverged-at" not in extended.headers
    said[2] = {"role": "user", "content": "no"}
    edited = await cwm.client.post(CHAT, json=request(CHAT, messages=said, stream=stream), headers=SESSION)
    assert edited.headers["cwm-diverged-at"] == "2; role=user; cause=edited"
    turn = await cwm.registry.turn(TENANT, edited.headers["cwm-turn"])
    assert turn is not None
    assert (turn.diverged_at, turn.cause, turn.number) == (2, "edited", 3)
    assert turn.first_token_ms is not None
    assert turn.old_message != turn.new_message is not None
    assert cwm.meter.counts["event turn_diverged_edited"] == 1


@STREAMED
async def test_a_template_that_writes_earlier_answers_in_another_way_is_the_cause(
    cwm: Gateway, vllm: FakeVllm, stream: bool
) -> None:
    vllm.think = "<think></think>"
    said: list[Any] = [{"role": "user", "content": "hey"}]
    first = await cwm.client.post(CHAT, json=request(CHAT, messages=said), headers=SESSION)
    said += [first.json()["choices"][0]["message"], {"role": "user", "content": "on"}]
    extended = await cwm.client.post(CHAT, json=request(CHAT, messages=said, stream=stream), headers=SESSION)
    assert "cwm-diverged-at" not in extended.headers
    turn = await cwm.registry.turn(TENANT, extended.headers["cwm-turn"])
    assert turn is not None
    assert (turn.cause, turn.diverged_at, turn.parent_at, turn.main) == ("template", None, len("hey"), True)
    assert cwm.meter.counts["event turn_diverged_template"] == 1


async def test_a_turn_whose_cache_ended_early_says_so(cwm: Gateway) -> None:
    said: list[Any] = [{"role": "user", "content": "hey " * 200}]
    first = await cwm.client.post(CHAT, json=request(CHAT, messages=said), headers=SESSION)
    said += [first.json()["choices"][0]["message"], {"role": "user", "content": "on"}]
    extended = await cwm.client.post(CHAT, json=request(CHAT, messages=said), headers=SESSION)
    turn = await cwm.registry.turn(TENANT, extended.headers["cwm-turn"])
    assert turn is not None
    assert (turn.missed, turn.cause) == ("evicted", "")
    assert turn.cached_tokens == turn.prompt_tokens // 2
    assert cwm.meter.counts["event turn_missed_evicted"] == 1


@BOTH
@pytest.mark.parametrize("more", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}])
async def test_a_turn_knows_its_cached_tokens_whether_or_not_its_client_asks_for_the_usage(
    cwm: Gateway, vllm: FakeVllm, path: str, more: dict[str, Any]
) -> None:
    body = request(path, stream=True, **more)
    through = await cwm.client.post(path, json=body, headers=SESSION)
    assert through.content == (await direct(vllm, path, body)).content
    assert b'"usage"' not in through.content
    turn = await cwm.registry.turn(TENANT, through.headers["cwm-turn"])
    assert turn is not None
    assert turn.cached_tokens == turn.prompt_tokens // 2


async def test_a_turn_that_is_asked_apart_is_no_part_of_the_conversation(cwm: Gateway) -> None:
    await cwm.client.post(CHAT, json=request(CHAT), headers=SESSION)
    longer = request(CHAT, messages=[{"role": "user", "content": "much longer than the first one"}])
    apart = await cwm.client.post(CHAT, json=longer, headers={**SESSION, "CWM-Branch": "new"})
    turn = await cwm.registry.turn(TENANT, apart.headers["cwm-turn"])
    assert turn is not None
    assert not turn.main
    assert await cwm.tokens("s1") == (*b"hey", *ANSWER_IDS)
    refused = await cwm.client.post(CHAT, json=longer, headers={**SESSION, "CWM-Branch": "old"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "CWM-1003")


@pytest.mark.parametrize(
    ("headers", "more", "code"),
    [
        ({"CWM-Continue": "s1"}, {}, "CWM-1003"),
        ({"CWM-Continue": "session:nobody"}, {}, "CWM-2001"),
        ({"CWM-Continue": "turn:nobody"}, {}, "CWM-2007"),
        ({"CWM-Continue": "window:nobody"}, {}, "CWM-2002"),
        ({"CWM-Continue": "session:s1", "CWM-Session-Id": "s2"}, {}, "CWM-1003"),
        ({"CWM-Continue": "session:s1"}, {"continue_final_message": True}, "CWM-1003"),
        ({"CWM-Continue": "session:s1"}, {"messages": []}, "CWM-1003"),
    ],
)
async def test_what_cannot_be_continued_is_refused_with_the_reason(
    cwm: Gateway, headers: dict[str, str], more: dict[str, Any], code: str
) -> None:
    await cwm.client.post(CHAT, json=request(CHAT), headers=SESSION)
    refused = await cwm.client.post(CHAT, json=request(CHAT, **more), headers=headers)
    assert refused.json()["error"]["code"] == code
    assert await cwm.tokens("s1") == (*b"hey", *ANSWER_IDS)


@BOTH
async def test_a_slash_at_the_end_of_a_path_changes_nothing(cwm: Gateway, path: str) -> None:
    answer = await cwm.client.post(path + "/", json=request(path), headers=SESSION)
    assert answer.status_code == 200
    assert await cwm.registry.session(TENANT, "s1")
    listed, listed_with_slash = [await cwm.client.get(path) for path in ("/v1/models", "/v1/models/")]
    assert listed_with_slash.json()["data"][0]["id"] == listed.json()["data"][0]["id"] == MODEL


@BOTH
@STREAMED
async def test_a_session_is_recorded_token_for_token(cwm: Gateway, path: str, stream: bool) -> None:
    await cwm.client.post(path, json=request(path, stream=stream), headers=SESSION)
    assert await cwm.tokens("s1") == (*b"hey", *ANSWER_IDS)
    session = await cwm.registry.session(TENANT, "s1")
    assert session is not None
    assert (session.owner, session.model, session.state) == ("agent", MODEL, SessionState.ACTIVE)
    assert session.salt_scope == f"tenant:{TENANT}"


async def test_a_turn_is_recorded_and_over_when_the_client_reads_the_end(cwm: Gateway) -> None:
    async with cwm.client.stream("POST", CHAT, json=request(CHAT, stream=True), headers=SESSION) as answer:
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                assert not cwm.turns.in_flight(TENANT, "s1")
                assert await cwm.tokens("s1") == (*b"hey", *ANSWER_IDS)


async def test_the_last_turn_that_goes_on_with_it_is_the_context(cwm: Gateway) -> None:
    for prompt in ("one", "one two", "a longer one about something else"):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        await cwm.client.post(COMPLETIONS, json=body, headers=SESSION)
    assert await cwm.tokens("s1") == (*b"one two", 1000)


async def test_a_chat_ui_s_title_without_system_text_is_no_context(cwm: Gateway) -> None:
    said: list[Any] = [{"role": "user", "content": "hey"}]
    answer = await cwm.client.post(CHAT, json=request(CHAT, messages=said), headers=SESSION)
    text = answer.json()["choices"][0]["message"]["content"]
    task = f"### Task: a title\n<chat_history>\nUSER: hey\nASSISTANT: {text}\n</chat_history>"
    asked = [{"role": "user", "content": task}]
    title = await cwm.client.post(CHAT, json=request(CHAT, messages=asked), headers=SESSION)
    turn = await cwm.registry.turn(TENANT, title.headers["cwm-turn"])
    assert turn is not None
    assert not turn.main
    assert await cwm.tokens("s1") == (*b"hey", *ANSWER_IDS)


async def test_without_a_session_nothing_is_recorded_and_no_ids_are_asked_for(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    answer = await cwm.client.post(CHAT, json=request(CHAT))
    assert "cwm-session-id" not in answer.headers
    assert "return_token_ids" not in vllm.turns[0].json
    assert vllm.turns[0].json["cache_salt"].startswith("cwm1-")
    assert not sum((await cwm.registry.totals(TENANT)).sessions.values())


async def test_sessions_of_a_tenant_share_a_salt_and_tenants_do_not(cwm: Gateway, vllm: FakeVllm) -> None:
    for headers in ({}, SESSION, {"CWM-Session-Id": "s2"}, {"x-tenant": "other", **SESSION}):
        await cwm.client.post(CHAT, json=request(CHAT), headers=headers)
    salts = [seen.json["cache_salt"] for seen in vllm.turns]
    assert salts[0] == salts[1] == salts[2] != salts[3]


async def test_in_session_scope_every_session_has_its_own_salt(vllm: FakeVllm, tmp_path: Path) -> None:
    async with gateway(settings_for(vllm.url), tmp_path, CacheScope.SESSION) as cwm:
        for headers in ({}, SESSION, {"CWM-Session-Id": "s2"}, SESSION, {"x-subject": "bob"}, {}):
            await cwm.client.post(CHAT, json=request(CHAT), headers=headers)
    salts = [seen.json["cache_salt"] for seen in vllm.turns]
    assert len(set(salts)) == 4
    assert (salts[1], salts[0]) == (salts[3], salts[5])


async def test_a_turn_opens_a_session_with_the_visibility_of_its_header(cwm: Gateway, vllm: FakeVllm) -> None:
    private = {"CWM-Visibility": "private", **SESSION}
    assert (await cwm.client.post(CHAT, json=request(CHAT), headers=private)).status_code == 200
    session = await cwm.registry.session(TENANT, "s1")
    assert session is not None
    assert (session.owner, session.circle) == ("agent", "owner:agent")
    assert "cwm-visibility" not in vllm.turns[0].headers
    refused = await cwm.client.post(
        CHAT, json=request(CHAT), headers={"CWM-Session-Id": "s2", "CWM-Visibility": "workspace:ops"}
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "CWM-1003")


async def test_a_session_id_that_is_anothers_takes_no_turns_and_is_refused_as_taken(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    await cwm.client.post(CHAT, json=request(CHAT), headers={"CWM-Visibility": "private", **SESSION})
    turn = await cwm.registry.current_turn(TENANT, "s1")
    assert turn is not None
    bob = {"x-subject": "bob"}
    taken = await cwm.client.post(CHAT, json=request(CHAT), headers={**bob, **SESSION})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "CWM-3001")
    assert taken.json()["error"]["context"] == {"session_id": "s1"}
    for target, code in (("session:s1", "CWM-2001"), (f"turn:{turn.id}", "CWM-2007")):
        headers = {**bob, "CWM-Continue": target}
        refused = await cwm.client.post(CHAT, json=request(CHAT), headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, code)
    assert len(vllm.turns) == 1
    assert await cwm.registry.current_turn(TENANT, "s1") == turn


async def test_a_turn_in_what_another_shares_is_audited(cwm: Gateway) -> None:
    await cwm.client.post(CHAT, json=request(CHAT), headers=SESSION)
    shared = await cwm.client.post(CHAT, json=request(CHAT), headers={"x-subject": "bob", **SESSION})
    assert shared.status_code == 200
    events = await cwm.audit.events(TENANT, 10)
    (read,) = [event for event in events if event.event == "security.shared_access"]
    assert (read.subject, read.details["owner"], read.details["session_id"]) == ("bob", "agent", "s1")


async def test_a_session_id_of_another_tenant_is_a_session_of_its_own(cwm: Gateway) -> None:
    await cwm.client.post(COMPLETIONS, json=request(COMPLETIONS), headers=SESSION)
    other = {"x-tenant": "other", **SESSION}
    await cwm.client.post(COMPLETIONS, json={"model": MODEL, "prompt": "mine"}, headers=other)
    assert (await cwm.tokens("s1"))[:3] == tuple(b"hey")
    assert (await cwm.tokens("s1", "other"))[:4] == tuple(b"mine")


async def test_fields_that_the_gateway_does_not_read_and_headers_reach_the_engine_and_credentials_do_not(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    headers = {"X-Request-Id": "r9", "Authorization": "Bearer secret", "Cookie": "a=b", **SESSION}
    body = request(CHAT, chat_template_kwargs={"deep": [1.50, None]}, store=False)
    await cwm.client.post(CHAT + "?trace=1", json=body, headers=headers)
    seen = vllm.turns[0]
    assert seen.target == CHAT + "?trace=1"
    assert seen.json["chat_template_kwargs"] == {"deep": [1.50, None]}
    assert seen.json["store"] is False
    assert seen.headers["x-request-id"].startswith("r9")
    assert not seen.headers.keys() & {"authorization", "cookie", "cwm-session-id"}


async def test_cached_and_computed_tokens_are_counted(cwm: Gateway) -> None:
    await cwm.client.post(COMPLETIONS, json={"model": MODEL, "prompt": "12345"})
    assert cwm.meter.counts["tokens cached"] == 2
    assert cwm.meter.counts["tokens computed"] == 3


async def test_control_tokens_in_a_callers_text_are_noted_and_pass(cwm: Gateway, vllm: FakeVllm) -> None:
    said = f"hi {SPECIAL} there {SPECIAL}"
    body = {"model": MODEL, "messages": [{"role": "user", "content": said}]}
    answer = await cwm.client.post(CHAT, json=body, headers=SESSION)
    assert answer.status_code == 200
    assert vllm.turns[0].json["messages"][0]["content"] == said
    noted = [e for e in await cwm.audit.events(TENANT, 10) if e.event == "session.special_tokens"]
    assert [(e.severity, e.details, e.session_id) for e in noted] == [(Severity.WARNING, {"count": 2}, "s1")]


async def test_a_session_keeps_its_model(cwm: Gateway) -> None:
    await cwm.client.post(CHAT, json=request(CHAT), headers=SESSION)
    answer = await cwm.client.post(CHAT, json={**request(CHAT), "model": "other"}, headers=SESSION)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "CWM-1003"
    assert answer.json()["error"]["context"]["model"] == MODEL


async def test_a_model_that_is_not_served_is_refused_with_the_originals_code(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    body = {**request(CHAT), "model": "nope"}
    for headers in ({}, SESSION):
        through, straight = (
            await cwm.client.post(CHAT, json=body, headers=headers),
            await direct(vllm, CHAT, body),
        )
        reworded = {"type": "invalid_request_error", "code": "model_not_found"}
        assert through.status_code == 404
        assert through.json()["error"] == {**straight.json()["error"], **reworded}
    assert await cwm.registry.session(TENANT, "s1") is None


async def test_what_the_engine_refuses_is_said_in_its_words_and_records_nothing(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    body = request(COMPLETIONS, max_tokens=0)
    through = await cwm.client.post(COMPLETIONS, json=body, headers=SESSION)
    straight = await direct(vllm, COMPLETIONS, body)
    reworded = {"type": "invalid_request_error", "code": None}
    assert through.status_code == 400
    assert through.json()["error"] == {**straight.json()["error"], **reworded}
    assert await cwm.tokens("s1") == ()


async def test_ids_that_the_engine_hides_are_not_recorded_and_that_is_written_down(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.HIDES_IDS
    answer = await cwm.client.post(CHAT, json=request(CHAT), headers=SESSION)
    assert answer.status_code == 200
    assert await cwm.tokens("s1") == ()
    lost = [e for e in await cwm.audit.events(TENANT, 10) if e.outcome == "not_recorded"]
    assert [(e.event, e.session_id) for e in lost] == [("session.turn", "s1")]


async def test_tokens_a_parser_keeps_to_itself_are_recorded_and_not_shown(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.KEEPS_TOKENS_BACK
    body = request(CHAT, stream=True)
    through = await cwm.client.post(CHAT, json=body, headers=SESSION)
    assert through.content == (await direct(vllm, CHAT, body)).content
    assert await cwm.tokens("s1") == (*b"hey", 1000, 7, 8, *ANSWER_IDS[1:])


@pytest.mark.parametrize("behaviour", [Behaviour.SPLITS_EVERY_BYTE, Behaviour.KEEPS_ALIVE])
@BOTH
async def test_odd_splits_comments_and_unknown_events_change_nothing(
    cwm: Gateway, vllm: FakeVllm, behaviour: Behaviour, path: str
) -> None:
    vllm.behaviour = behaviour
    body = request(path, stream=True)
    through = await cwm.client.post(path, json=body, headers=SESSION)
    assert through.content == (await direct(vllm, path, body)).content
    assert await cwm.tokens("s1") == (*b"hey", *ANSWER_IDS)


async def test_events_come_as_they_happen(cwm: Gateway, vllm: FakeVllm) -> None:
    vllm.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN
    async with cwm.client.stream("POST", CHAT, json=request(CHAT, stream=True), headers=SESSION) as answer:
        lines = answer.aiter_lines()
        async with asyncio.timeout(10):
            got = [await anext(lines) for _ in range(4)]
        assert '"role"' in got[0]
        assert '"once"' in got[2]
        assert cwm.turns.in_flight(TENANT, "s1")
        vllm.release.set()
        assert [line async for line in lines if line][-1] == "data: [DONE]"


async def test_a_prompt_that_leaves_no_room_is_refused_before_it_is_sent(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    for prompt in ([1] * MAX_MODEL_LEN, [[1], [1] * MAX_MODEL_LEN]):
        answer = await cwm.client.post(COMPLETIONS, json={"model": MODEL, "prompt": prompt})
        assert answer.json()["error"]["code"] == "CWM-1003"
    assert not vllm.turns
    fits = {"model": MODEL, "prompt": [1] * (MAX_MODEL_LEN - 1)}
    assert (await cwm.client.post(COMPLETIONS, json=fits)).status_code == 200


async def test_a_turn_that_ends_after_its_session_was_frozen_is_written_down(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    sending = asyncio.create_task(cwm.client.post(CHAT, json=request(CHAT), headers=SESSION))
    await vllm.waiting.wait()
    await _retire(cwm, "s1")
    vllm.release.set()
    assert (await sending).status_code == 200
    lost = [e for e in await cwm.audit.events(TENANT, 10) if e.outcome == "not_recorded"]
    assert [e.details["token_count"] for e in lost] == [11]


async def test_a_session_that_is_no_longer_live_takes_no_turn(cwm: Gateway, vllm: FakeVllm) -> None:
    await cwm.client.post(CHAT, json=request(CHAT), headers=SESSION)
    await _retire(cwm, "s1")
    answer = await cwm.client.post(CHAT, json=request(CHAT), headers=SESSION)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "CWM-3002"
    assert len(vllm.turns) == 1


async def _retire(cwm: Gateway, session_id: str) -> None:
    """End a session as another replica might: in the registry, behind this process's back."""
    ended = update(sessions).where(sessions.c.id == session_id).values(state=str(SessionState.EXPIRED))
    await cwm.database.write(lambda connection: connection.execute(ended))


async def test_two_first_turns_at_once_make_one_session(cwm: Gateway) -> None:
    answers = await asyncio.gather(
        *(cwm.client.post(CHAT, json=request(CHAT), headers=SESSION) for _ in range(8))
    )
    assert {a.status_code for a in answers} == {200}
    assert sum((await cwm.registry.totals(TENANT)).sessions.values()) == 1
    assert not cwm.turns.in_flight(TENANT, "s1")


@STREAMED
async def test_a_turn_that_cannot_be_recorded_is_not_told_as_complete(cwm: Gateway, stream: bool) -> None:
    await cwm.client.post(CHAT, json=request(CHAT), headers=SESSION)
    await cwm.database.write(lambda connection: connection.execute(text("DROP TABLE turn_contents")))
    answer = await cwm.client.post(CHAT, json=request(CHAT, stream=stream), headers=SESSION)
    assert '"CWM-4001"' in answer.text
    assert "[DONE]" not in answer.text
    assert answer.status_code == (200 if stream else 503)
    assert not cwm.turns.in_flight(TENANT, "s1")


async def test_megabytes_reach_the_client_recorded_or_not(cwm: Gateway, vllm: FakeVllm) -> None:
    vllm.behaviour = Behaviour.TALKS_AT_LENGTH
    for headers in ({}, SESSION):
        answer = await cwm.client.post(CHAT, json=request(CHAT), headers=headers)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["logprobs"] == {"content": LARGE}
    assert (await cwm.tokens("s1"))[-8:] == tuple(range(1000, 1008))
