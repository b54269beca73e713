"""Requests without a session id: the conversation that they belong to is found by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import update

from cwm.adapters.sql.tables.sessions import sessions
from cwm.domain.conversation import Capture, CapturePolicies
from cwm.domain.session import SessionQuery, SessionState
from cwm.domain.turn import TurnQuery
from tests.adapters.vllm.fake_vllm import MODEL, Behaviour, FakeVllm
from tests.transport.llm.gateway import TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

CHAT: Final = "/v1/chat/completions"
HEY: Final = {"role": "user", "content": "hey"}
ON: Final = {"role": "user", "content": "on"}
ANSWER: Final = {"role": "assistant", "content": "It is done."}
CLAUDE: Final = {"X-Claude-Code-Session-Id": "00000000-0000-4000-8000-000000000000"}


@pytest.fixture
async def cwm(vllm: FakeVllm, tmp_path: Path) -> AsyncIterator[Gateway]:
    modes = {"named": Capture.NAMED, "off": Capture.OFF}
    policies = CapturePolicies(
        Capture.ALL, modes, ("x-our-thread",), fixed_ids=("a fixed/id", "fixed"), by_cache_key=True
    )
    async with gateway(settings_for(vllm.url), tmp_path, capture=policies) as running:
        yield running


async def say(
    cwm: Gateway, *messages: dict[str, Any], headers: dict[str, str] | None = None, **more: Any
) -> tuple[str | None, list[dict[str, Any]]]:
    """The session that the turn was recorded in, and the conversation with its answer."""
    body = {"model": MODEL, "messages": list(messages), **more}
    answer = await cwm.client.post(CHAT, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers.get("cwm-session-id"), [*messages, answer.json()["choices"][0]["message"]]


async def numbers(cwm: Gateway, session_id: str | None) -> list[tuple[int, bool]]:
    """The turns of a session and whether they continue one, the first first."""
    turns = await cwm.registry.turns(TENANT, session_id or "", TurnQuery())
    return [(turn.number, turn.continues) for turn in reversed(turns)]


@pytest.mark.parametrize(
    ("headers", "session_id"),
    [
        (CLAUDE, "00000000-0000-4000-8000-000000000000"),
        ({"session-id": "start", "thread-id": "now"}, "now"),
        ({"session-id": "start"}, "start"),
        ({"x-session-id": "ses_1", "x-session-affinity": "ses_2"}, "ses_1"),
        ({"x-session-affinity": "ses_2"}, "ses_2"),
        ({"agent-session-id": "a"}, "a"),
        ({"X-OpenWebUI-Chat-Id": "chat-1", "x-session-id": "ses_1"}, "chat-1"),
        ({"X-Conversation-Id": "talk"}, "talk"),
        ({"X-Our-Thread": "t", "x-session-id": "ses_1"}, "t"),
        ({"CWM-Session-Id": "mine", **CLAUDE}, "mine"),
    ],
)
async def test_what_a_client_calls_its_conversation_is_its_session(
    cwm: Gateway, headers: dict[str, str], session_id: str
) -> None:
    assert (await say(cwm, HEY, headers=headers))[0] == session_id
    assert (await say(cwm, HEY, ON, headers=headers))[0] == session_id
    assert len(await numbers(cwm, session_id)) == 2


async def test_a_name_that_no_session_can_have_stands_for_one_that_can(cwm: Gateway) -> None:
    first, _ = await say(cwm, HEY, headers={"x-session-id": "a b/c"})
    assert first is not None
    assert first.startswith("client_")
    assert (await say(cwm, HEY, headers={"x-session-id": "a b/c"}))[0] == first
    assert (await say(cwm, HEY, headers={"x-session-id": "a b/d"}))[0] != first


@pytest.mark.parametrize(
    ("main", "agent", "parent"),
    [
        (CLAUDE, {**CLAUDE, "x-claude-code-agent-id": "ac3ba"}, "00000000-0000-4000-8000-000000000000"),
        ({"x-session-id": "m"}, {"x-session-id": "s", "x-parent-session-id": "m"}, "m"),
        ({"session-id": "m"}, {"session-id": "m", "thread-id": "s"}, "m"),
        (
            {"session-id": "root", "thread-id": "m", "x-codex-parent-thread-id": "root"},
            {"session-id": "root", "thread-id": "s", "x-codex-parent-thread-id": "m"},
            "m",
        ),
    ],
)
async def test_a_sub_agent_has_a_session_of_its_own_that_names_its_parent(
    cwm: Gateway, main: dict[str, str], agent: dict[str, str], parent: str
) -> None:
    assert (await say(cwm, HEY, headers=main))[0] == parent
    child, _ = await say(cwm, HEY, headers=agent)
    assert child not in {None, parent}
    session = await cwm.registry.session(TENANT, child or "")
    assert session is not None
    assert session.metadata == {"found_by": "client", "parent_session": parent}


async def test_a_conversation_that_goes_on_from_an_answer_of_another_is_a_fork_of_it(cwm: Gateway) -> None:
    async def origin(session_id: str) -> str | None:
        session = await cwm.registry.session(TENANT, session_id)
        assert session is not None
        return session.origin

    async def named(session_id: str, *messages: dict[str, Any], **who: str) -> list[dict[str, Any]]:
        assert (await say(cwm, *messages, headers={"x-session-id": session_id, **who}))[0] == session_id
        return (await say(cwm, *messages, headers={"x-session-id": session_id, **who}))[1]

    said = await named("trunk", HEY)
    parting = await cwm.registry.current_turn(TENANT, "trunk")
    said = [*said, ON, ANSWER, HEY]
    await named("fork", *said)
    await named("alike", HEY)
    await named("bobs", *said, **{"x-subject": "bob"})
    unnamed, _ = await say(cwm, *said)
    assert parting is not None
    assert await origin("fork") == parting.id
    assert [await origin(each) for each in ("trunk", "alike", "bobs")] == [None] * 3
    assert unnamed not in {"trunk", "fork"}


def codex(window: int, kind: str = "turn", thread: str = "t-1") -> dict[str, str]:
    """The headers of a request of Codex after so many compactions."""
    metadata = {"request_kind": kind, "installation_id": "i-1", "workspaces": {"/home/ann": {}}}
    return {
        "session-id": "t-1",
        "thread-id": thread,
        "x-codex-window-id": f"{thread}:{window}",
        "x-codex-turn-metadata": json.dumps(metadata),
    }


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


async def line(cwm: Gateway, session_id: str) -> list[tuple[bool, int | None]]:
    """Of each turn whether it is of the main line, and the number of the turn that it compacts."""
    turns = [*reversed(await cwm.registry.turns(TENANT, session_id, TurnQuery()))]
    number = {turn.id: turn.number for turn in turns}
    current = await cwm.registry.current_turn(TENANT, session_id)
    assert current is not None
    assert current.number == max(turn.number for turn in turns if turn.main)
    return [(turn.main, None if turn.compacts is None else number[turn.compacts]) for turn in turns]


async def test_what_codex_says_to_go_on_from_a_summary_is_the_next_turn(cwm: Gateway) -> None:
    _, said = await say(cwm, system("Agent."), HEY, headers=codex(0))
    await say(cwm, *said, {"role": "user", "content": "Summarise."}, headers=codex(0, "compaction"))
    assert await line(cwm, "t-1") == [(True, None), (False, None)]
    summary = {"role": "user", "content": "A summary: hey."}
    _, said = await say(cwm, system("Agent, another day."), HEY, summary, headers=codex(1))
    _, said = await say(cwm, *said, ON, headers=codex(1))
    assert await line(cwm, "t-1") == [(True, None), (False, None), (True, 1), (True, None)]
    await say(cwm, *said, ON, headers=codex(2, "compaction"))
    await say(cwm, system("Agent."), summary, headers=codex(3))
    assert (await line(cwm, "t-1"))[4:] == [(False, None), (True, 4)]
    turns = await cwm.registry.turns(TENANT, "t-1", TurnQuery())
    assert [turn.compactions for turn in turns] == [3, 2, 1, 1, 0, 0]


SUMMARY_REQUEST: Final = {
    "role": "user",
    "content": f"{ON['content']}\nYour task is to create a detailed summary of the conversation so far.\n"
    "<analysis>\n</analysis>\n<summary>\n</summary>",
}


async def test_claude_codes_request_for_a_summary_is_no_part_of_its_conversation(cwm: Gateway) -> None:
    more: dict[str, Any] = {
        "headers": CLAUDE,
        "tools": [{"type": "function", "function": {"name": "read"}}],
    }
    session_id, said = await say(cwm, HEY, ANSWER, ON, **more)
    await say(cwm, HEY, ANSWER, SUMMARY_REQUEST, **more)
    await say(cwm, {"role": "user", "content": "A summary: ..."}, said[-1], ON, **more)
    assert await line(cwm, session_id or "") == [(True, None), (False, None), (True, 1)]


CHAT_UI: Final = {"X-OpenWebUI-Chat-Id": "chat-1"}
TAGS: Final = "### Task:\nFind one to three tags.\n\n<chat_history>\nUSER: hey\n</chat_history>"


@pytest.mark.parametrize(
    ("question", "headers"),
    [
        (TAGS, CHAT_UI),
        ("Which words describe this?", {**CHAT_UI, "X-OpenWebUI-Task": "tags_generation"}),
        (
            "Provide a concise, 5-word-or-less title for the conversation. Only return the title itself.",
            {"X-Conversation-Id": "chat-1"},
        ),
    ],
)
async def test_what_a_chat_ui_asks_for_itself_is_no_part_of_the_chat(
    cwm: Gateway, question: str, headers: dict[str, str]
) -> None:
    named = {name: value for name, value in headers.items() if "Task" not in name}
    await say(cwm, HEY, headers=named)
    await say(cwm, {"role": "user", "content": question}, headers=headers)
    assert await line(cwm, "chat-1") == [(True, None), (False, None)]


async def test_temporary_chats_that_share_an_id_are_apart(cwm: Gateway) -> None:
    shared = {"X-OpenWebUI-Chat-Id": "local:socket"}
    first, said = await say(cwm, HEY, headers=shared)
    other, _ = await say(cwm, ON, headers=shared)
    again, _ = await say(cwm, *said, ON, headers=shared)
    assert first == again != other


@pytest.mark.parametrize(
    ("question", "headers"),
    [
        (SUMMARY_REQUEST, {}),
        ({"role": "user", "content": "Your task is to create a detailed summary of README.md."}, CLAUDE),
    ],
)
async def test_a_users_own_request_for_a_summary_is_a_turn_of_the_conversation(
    cwm: Gateway, question: dict[str, Any], headers: dict[str, str]
) -> None:
    session_id, said = await say(cwm, HEY, headers=headers)
    await say(cwm, *said, question, headers=headers)
    assert await line(cwm, session_id or "") == [(True, None), (True, None)]


async def test_the_turn_before_a_compaction_is_tagged_by_itself(cwm: Gateway) -> None:
    await say(cwm, system("Agent."), HEY, headers=codex(0))
    assert await cwm.registry.tags(TENANT) == []
    for _ in range(2):
        await say(cwm, system("Agent."), ON, headers=codex(1))
    await say(cwm, system("Agent."), HEY, headers=codex(2))
    await cwm.pass_through.drain(60)
    names = {tag.turn_id: tag.name for tag in await cwm.registry.tags(TENANT) if tag.automatic}
    turns = await cwm.registry.turns(TENANT, "t-1", TurnQuery())
    assert {turn.number: names[turn.id] for turn in turns if turn.id in names} == {
        1: "t-1.before-compaction-1",
        3: "t-1.before-compaction-3",
    }


@pytest.mark.parametrize("kind", ["compaction", "memory"])
async def test_a_summary_is_no_conversation_even_where_nothing_was_recorded_before(
    cwm: Gateway, kind: str
) -> None:
    await say(cwm, system("Agent."), HEY, ANSWER, ON, headers=codex(0, kind))
    assert await cwm.registry.current_turn(TENANT, "t-1") is None
    await say(cwm, system("Agent."), HEY, headers=codex(1))
    assert await line(cwm, "t-1") == [(False, None), (True, None)]


async def test_a_turn_that_goes_on_after_the_first_of_a_summary_compacts_nothing(cwm: Gateway) -> None:
    await say(cwm, system("Agent."), HEY, headers=codex(0))
    _, summarised = await say(cwm, system("Agent."), ON, headers=codex(1))
    [after, before] = await cwm.registry.turns(TENANT, "t-1", TurnQuery())
    assert await cwm.registry.revert(before, after.asked_at) is not None
    await say(cwm, *summarised, ON, headers=codex(1))
    assert await line(cwm, "t-1") == [(True, None), (True, 1), (True, None)]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-codex-window-id": "t-1:"},
        {"x-codex-window-id": "t-1:-1", "x-codex-turn-metadata": "{"},
        {"x-codex-window-id": "t-1:1e3", "x-codex-turn-metadata": "[" * 5000},
        {"x-codex-window-id": "t-1:12345678901", "x-codex-turn-metadata": '{"request_kind": {}}'},
        {"CWM-Session-Id": "of-many", "x-codex-window-id": "t-1:1"},
    ],
)
async def test_what_does_not_count_compactions_of_the_session_announces_none(
    cwm: Gateway, headers: dict[str, str]
) -> None:
    named = {"CWM-Session-Id": headers["CWM-Session-Id"]} if "CWM-Session-Id" in headers else {}
    session_id, _ = await say(cwm, system("Agent."), HEY, headers={**codex(0), **named})
    await say(cwm, system("Another."), HEY, headers={**codex(0), **headers})
    assert (await line(cwm, session_id or ""))[1] == (False, None)


@pytest.mark.parametrize("headers", [{}, CLAUDE])
async def test_who_left_the_workspace_of_a_conversation_goes_on_in_another_session(
    cwm: Gateway, headers: dict[str, str]
) -> None:
    session_id, said = await say(cwm, HEY, headers=headers)
    session = await cwm.registry.session(TENANT, session_id or "")
    assert session is not None
    assert await cwm.registry.share_session(session, "workspace:left")
    other, said = await say(cwm, *said, ON, headers=headers)
    assert other not in {None, session_id}
    assert (await say(cwm, *said, ON, headers=headers))[0] == other
    assert len(await numbers(cwm, session_id)) == 1


async def test_a_conversation_without_a_name_is_found_by_its_last_answer(cwm: Gateway) -> None:
    session_id, said = await say(cwm, HEY)
    assert session_id is not None
    assert session_id.startswith("conversation_")
    for _ in range(10):
        found, said = await say(cwm, *said, ON)
        assert found == session_id
    shorter, _ = await say(cwm, *said[:-4], {"role": "user", "content": "rather this"})
    assert shorter == session_id
    assert (await numbers(cwm, session_id))[-2:] == [(11, True), (12, True)]


async def test_reasoning_and_white_space_that_a_client_leaves_out_part_no_conversation(cwm: Gateway) -> None:
    session_id, said = await say(cwm, {"role": "system", "content": "It is 2026-11-25, a Wednesday."}, HEY)
    said[2] = {"role": "assistant", "content": [{"type": "text", "text": said[2]["content"] + "\n"}]}
    said[0] = {"role": "system", "content": "It is 2026-11-26, a Thursday."}
    assert (await say(cwm, *said, ON))[0] == session_id
    said[0] = {"role": "system", "content": "It is raining."}
    assert (await say(cwm, *said, ON))[0] != session_id


async def test_conversations_that_begin_alike_are_apart(cwm: Gateway) -> None:
    sessions = await asyncio.gather(*(say(cwm, HEY) for _ in range(5)))
    sessions.append(await say(cwm, HEY))
    assert len({session_id for session_id, _ in sessions}) == 6


async def test_of_conversations_that_begin_alike_each_is_gone_on_with_once(cwm: Gateway) -> None:
    """Nothing tells them apart but that nobody has gone on from there."""
    begun = [await say(cwm, HEY) for _ in range(4)]
    session_ids = [session_id for session_id, _ in begun]
    gone_on = await asyncio.gather(*(say(cwm, *said, ON) for _, said in begun[:3]))
    assert sorted(str(session_id) for session_id, _ in gone_on) == sorted(map(str, session_ids[:3]))
    assert (await say(cwm, *begun[0][1], HEY))[0] == session_ids[3]
    for session_id in session_ids:
        assert await numbers(cwm, session_id) == [(1, False), (2, True)]
    # All were gone on from: a branch of the one that was used last.
    assert (await say(cwm, *begun[0][1], ANSWER, HEY))[0] == session_ids[3]


GIT: Final = (
    'You are a coding agent.\n<context name="gitStatus">This is a snapshot in time.\n\n{}\n</context>'
)


async def test_a_conversation_is_found_though_its_client_writes_its_surroundings_anew(cwm: Gateway) -> None:
    clean, changed = (
        {"role": "system", "content": GIT.format(status)} for status in ("clean", "M parser.py\n?? out.txt")
    )
    one, said = await say(cwm, clean, HEY)
    assert (await say(cwm, changed, *said[1:], ON))[0] == one
    turns = await cwm.registry.turns(TENANT, one or "", TurnQuery())
    assert [(turn.joined, turn.cause, turn.main) for turn in turns] == [
        ("assumed", "system_text", True),
        (None, "", True),
    ]
    # Somebody went on from that answer, so what says otherwise is another conversation.
    assert (await say(cwm, {"role": "system", "content": "Elsewhere."}, *said[1:], HEY))[0] != one
    assert (await say(cwm, clean, *said[1:], HEY))[0] == one


async def test_a_list_of_files_before_the_first_question_is_not_part_of_it(cwm: Gateway) -> None:
    def asked(files: str) -> dict[str, Any]:
        reminder = {"type": "text", "text": f"<system-reminder>\n{files}\n</system-reminder>"}
        return {"role": "user", "content": [reminder, {"type": "text", "text": "hey"}]}

    one, said = await say(cwm, asked("a.py"))
    assert (await say(cwm, asked("a.py\nb.py"), *said[1:], ON))[0] == one


async def test_principals_never_share_a_conversation(cwm: Gateway) -> None:
    people = [{"x-subject": f"person-{number}"} for number in range(50)]
    begun = [await say(cwm, HEY, headers=person) for person in people]
    gone_on = [await say(cwm, *said, ON, headers=p) for p, (_, said) in zip(people, begun, strict=True)]
    assert len({session_id for session_id, _ in begun}) == 50
    assert [session_id for session_id, _ in begun] == [session_id for session_id, _ in gone_on]
    for person in people[:3]:
        await say(cwm, HEY, headers={**person, **CLAUDE})
    listed = await cwm.registry.sessions(TENANT, SessionQuery(limit=1000))
    assert len(listed) == 53
    counts = [len(await numbers(cwm, session.id)) for session in listed]
    assert sorted(counts) == [1] * 3 + [2] * 50


async def test_people_whose_clients_name_their_conversations_alike_at_once_have_one_each(
    cwm: Gateway,
) -> None:
    people = [{"x-subject": f"person-{number}", **CLAUDE} for number in range(20)]
    begun = await asyncio.gather(*(say(cwm, HEY, headers=person) for person in people))
    gone_on = [await say(cwm, *said, ON, headers=p) for p, (_, said) in zip(people, begun, strict=True)]
    assert len({session_id for session_id, _ in begun}) == len(people)
    assert [session_id for session_id, _ in begun] == [session_id for session_id, _ in gone_on]
    for session_id, _ in begun:
        assert await numbers(cwm, session_id) == [(1, False), (2, True)]


async def test_a_request_that_is_sent_again_because_its_client_left_joins_the_first(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    leaving = asyncio.create_task(say(cwm, HEY))
    async with asyncio.timeout(10):
        await vllm.waiting.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    [first] = await cwm.registry.sessions(TENANT, SessionQuery(unlisted=True))
    vllm.behaviour = Behaviour.NORMAL
    again, _ = await say(cwm, HEY, headers={"X-Stainless-Retry-Count": "1"})
    vllm.release.set()
    await cwm.turns_ended(first.id)
    assert again == first.id
    assert (await say(cwm, {"role": "user", "content": "ho"}))[0] != first.id


@pytest.mark.parametrize(
    "headers",
    [
        {"CWM-Session-Id": "fixed"},
        {"X-Our-Thread": "a fixed/id"},
        {"X-Our-Thread": "fixed", "x-tenant": "named"},
    ],
)
async def test_what_begins_anew_under_an_id_that_is_fixed_is_a_session_of_its_own(
    cwm: Gateway, headers: dict[str, str]
) -> None:
    other, _ = await say(cwm, HEY, headers=headers)
    one, said = await say(cwm, HEY, headers=headers)
    elsewhere, _ = await say(cwm, *said, ON)
    gone_on = [(await say(cwm, *said, ON, headers=headers))[0] for _ in range(2)]
    assert gone_on == [other, one]
    assert len({one, other, elsewhere, "fixed"}) == 4
    assert {(one or "")[:5], (other or "")[:5]} in ({"fixed"}, {"clien"})
    assert (await say(cwm, HEY, headers={"x-our-thread": "mine"}))[0] == "mine"


async def test_a_cache_key_parts_conversations_and_joins_none(cwm: Gateway) -> None:
    other, _ = await say(cwm, HEY, prompt_cache_key="a")
    one, said = await say(cwm, HEY, prompt_cache_key="a")
    assert one != other
    for key in ("b", None):
        assert (await say(cwm, *said, ON, prompt_cache_key=key))[0] not in {one, other}
    assert (await say(cwm, *said, ON, prompt_cache_key="a"))[0] == other


async def test_a_fixed_id_names_what_is_no_chat_and_where_nothing_is_captured(cwm: Gateway) -> None:
    body = {"model": MODEL, "prompt": "hey"}
    answer = await cwm.client.post("/v1/completions", json=body, headers={"CWM-Session-Id": "fixed"})
    assert answer.headers["cwm-session-id"] == "fixed"
    for more in ({"x-tenant": "off"}, {"CWM-Capture": "off"}):
        assert (await say(cwm, HEY, headers={"CWM-Session-Id": "fixed", **more}))[0] == "fixed"


@pytest.mark.parametrize("state", [SessionState.FROZEN, SessionState.EXPIRED])
async def test_a_client_goes_on_with_a_conversation_that_was_frozen_or_expired(
    cwm: Gateway, state: SessionState
) -> None:
    _, said = await say(cwm, HEY, headers=CLAUDE)
    ended = update(sessions).values(state=state.value)
    await cwm.database.write(lambda connection: connection.execute(ended))
    session_id, _ = await say(cwm, *said, ON, headers=CLAUDE)
    assert await numbers(cwm, session_id) == [(1, False), (2, True)]
    session = await cwm.registry.session(TENANT, session_id or "")
    assert session is not None
    assert session.state is SessionState.ACTIVE


@pytest.mark.parametrize(
    ("headers", "recorded"),
    [
        ({"x-tenant": "off", **CLAUDE}, False),
        ({"x-tenant": "off"}, False),
        ({"x-tenant": "named"}, False),
        ({"x-tenant": "named", **CLAUDE}, True),
        ({"CWM-Capture": "off", **CLAUDE}, False),
        ({"CWM-Capture": "off", "CWM-Session-Id": "s1"}, True),
    ],
)
async def test_a_tenant_and_a_request_say_what_is_recorded(
    cwm: Gateway, headers: dict[str, str], recorded: bool
) -> None:
    session_id, _ = await say(cwm, HEY, headers=headers)
    assert (session_id is not None) is recorded


async def test_what_no_session_can_record_is_answered_all_the_same(cwm: Gateway) -> None:
    assert (await say(cwm, HEY, headers=CLAUDE, include_reasoning=False))[0] is None
    answer = await cwm.client.post("/v1/completions", json={"model": MODEL, "prompt": "hey"})
    assert answer.status_code == 200
    assert "cwm-session-id" not in answer.headers
    refused = await cwm.client.post(
        CHAT, json={"model": MODEL, "messages": [HEY]}, headers={"CWM-Capture": "on"}
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "CWM-1003")


async def test_a_request_that_is_sent_anew_after_its_client_left_joins_the_first(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    leaving = asyncio.create_task(say(cwm, HEY))
    async with asyncio.timeout(10):
        await vllm.waiting.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    vllm.release.set()
    [first] = await cwm.registry.sessions(TENANT, SessionQuery(unlisted=True))
    await cwm.turns_ended(first.id)
    vllm.behaviour = Behaviour.NORMAL
    assert (await say(cwm, HEY))[0] == first.id
    assert await numbers(cwm, first.id) == [(1, False), (2, False)]
