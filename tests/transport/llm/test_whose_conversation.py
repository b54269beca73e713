"""Requests that carry answers with tool calls: whose conversation they are is proven by ids that the engine drew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from cwm.domain.conversation import Capture, CapturePolicies
from cwm.domain.keep import KeepPolicies, KeepPolicy
from cwm.domain.turn import Turn, TurnQuery
from tests.adapters.vllm.fake_vllm import ANSWER, MODEL, FakeVllm
from tests.contracts.nouns import a_session
from tests.transport.llm.gateway import TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

MESSAGES: Final = "/v1/messages"
SYSTEM: Final = "You are a coding agent."
LOOK: Final = {"name": "look", "input_schema": {"type": "object"}}
OTHER: Final = {"name": "remember", "input_schema": {"type": "object"}}


@pytest.fixture
async def cwm(vllm: FakeVllm, tmp_path: Path) -> AsyncIterator[Gateway]:
    vllm.call_id = lambda: f"chatcmpl-tool-{uuid4().hex}"
    async with gateway(settings_for(vllm.url), tmp_path, capture=CapturePolicies(Capture.ALL)) as running:
        yield running


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(answer: dict[str, Any], text: str = "4711") -> dict[str, Any]:
    """What the tool gave that the answer called."""
    call_id = answer["content"][0]["id"]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}


async def ask(
    cwm: Gateway,
    *messages: dict[str, Any],
    system: str = SYSTEM,
    tool: dict[str, Any] = LOOK,
    calls: bool = True,
    headers: dict[str, str] | None = None,
) -> tuple[str, dict[str, Any]]:
    """The session of the turn, and its answer, which calls the tool or has a text."""
    choice = {"type": "tool", "name": tool["name"]} if calls else {"type": "none"}
    body = {"model": MODEL, "max_tokens": len(ANSWER), "system": system, "messages": list(messages)}
    answer = await cwm.client.post(
        MESSAGES, json=body | {"tools": [tool], "tool_choice": choice}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    return answer.headers["cwm-session-id"], {"role": "assistant", "content": answer.json()["content"]}


async def turns_of(cwm: Gateway, session_id: str) -> list[Turn]:
    """The first first."""
    return list(reversed(await cwm.registry.turns(TENANT, session_id, TurnQuery())))


async def test_an_answer_of_the_engine_proves_whose_conversation_it_is_whatever_stands_before_it(
    cwm: Gateway,
) -> None:
    one, answer = await ask(cwm, user("/tmp/scratch-1 Mend it."), system=f"{SYSTEM} Clean.")
    more = (answer, result(answer))
    second, _ = await ask(cwm, user("/tmp/scratch-2 Mend it."), *more, system=f"{SYSTEM} M a.py")
    third, _ = await ask(
        cwm, user("/tmp/scratch-3 Mend it."), *more, user("Well?"), system=f"{SYSTEM} M b.py"
    )
    assert one == second == third
    turns = await turns_of(cwm, one)
    assert [(turn.joined, turn.main, turn.cause) for turn in turns] == [
        (None, True, ""),
        ("id", True, "system_text"),
        ("id", True, "system_text"),
    ]


async def test_conversations_that_begin_alike_keep_their_own_calls(cwm: Gateway) -> None:
    begun = [await ask(cwm, user("Look.")) for _ in range(4)]
    gone_on = await asyncio.gather(
        *(ask(cwm, user("Look."), answer, result(answer)) for _, answer in reversed(begun))
    )
    assert [session_id for session_id, _ in gone_on] == [session_id for session_id, _ in reversed(begun)]


async def test_an_id_alone_proves_nothing(cwm: Gateway) -> None:
    one, answer = await ask(cwm, user("Look."))
    block = answer["content"][0]
    forged = [
        {**block, "input": {"at": "elsewhere"}},
        {**block, "name": "another"},
    ]
    for each in forged:
        mine = {"role": "assistant", "content": [each]}
        assert (await ask(cwm, user("Something else."), mine, result(answer)))[0] != one
    assert (await ask(cwm, user(f"What was {block['id']}?")))[0] != one
    copied = {"x-subject": "bob"}
    assert (await ask(cwm, user("Look."), answer, result(answer), headers=copied))[0] != one
    assert len(await turns_of(cwm, one)) == 1


@pytest.mark.parametrize("call_id", ["call_1", "functions.look:0", "call_0000000000000001"])
async def test_an_id_that_is_counted_proves_nothing(cwm: Gateway, vllm: FakeVllm, call_id: str) -> None:
    vllm.call_id = lambda: call_id
    one, answer = await ask(cwm, user("Look at this."))
    other, _ = await ask(cwm, user("Look at that."), answer, result(answer))
    assert other != one
    assert [turn.calls for turn in await turns_of(cwm, one)] == [None]


async def test_another_agent_that_carries_the_answers_has_a_session_of_its_own(cwm: Gateway) -> None:
    main, answer = await ask(cwm, user("Look."))
    said = [user("Look."), answer, result(answer)]
    _, text = await ask(cwm, *said, calls=False)
    said = [*said, text]
    memory, noted = await ask(cwm, *said, user("What is worth keeping?"), system="You remember.", tool=OTHER)
    session = await cwm.registry.session(TENANT, memory)
    assert session is not None
    assert session.metadata == {"found_by": "content", "parent_session": main}
    again, _ = await ask(
        cwm, *said, user("What is worth keeping?"), noted, result(noted), system="You remember.", tool=OTHER
    )
    assert again == memory != main
    assert (await ask(cwm, *said, user("Go on.")))[0] == main
    assert [turn.main for turn in await turns_of(cwm, main)] == [True] * 3


async def test_a_regenerated_answer_is_a_sibling_in_the_same_session(cwm: Gateway) -> None:
    one, answer = await ask(cwm, user("Look."))
    said = (user("Look."), answer, result(answer))
    first, left = await ask(cwm, *said)
    again, right = await ask(cwm, *said)
    assert first == again == one
    for last in (left, right):
        assert (await ask(cwm, *said, last, result(last)))[0] == one
    turns = await turns_of(cwm, one)
    assert [turn.parent for turn in turns[:3]] == [None, turns[0].id, turns[0].id]
    assert [turn.joined for turn in turns] == [None, "id", "id", "id", "id"]


async def test_a_branch_at_an_answer_takes_what_goes_on_from_there_once_the_trunk_went_on(
    cwm: Gateway,
) -> None:
    trunk, answer = await ask(cwm, user("Look."))
    said = (user("Look."), answer, result(answer))
    (first,) = await turns_of(cwm, trunk)
    _, later = await ask(cwm, *said)
    token_ids = await cwm.registry.turn_tokens(first)
    now = datetime.now(UTC)
    branch = a_session("branch", TENANT, owner=first.author, model=MODEL, created_at=now, updated_at=now)
    await cwm.registry.add_session(branch, token_ids, source_turn=first.id)
    assert (await ask(cwm, *said, user("Rather this.")))[0] == "branch"
    # A later answer of the request is the trunk's.
    assert (await ask(cwm, *said, later, result(later), system=f"{SYSTEM} M a.py"))[0] == trunk
    assert (await ask(cwm, *said, user("Or this?"), system=f"{SYSTEM} M a.py"))[0] == trunk


async def test_a_conversation_that_its_client_names_takes_nobody_elses_turns(cwm: Gateway) -> None:
    named, answer = await ask(cwm, user("Look."), headers={"x-session-id": "named"})
    said = (user("Look."), answer, result(answer))
    unnamed, _ = await ask(cwm, *said)
    assert named == "named" != unnamed
    fork, _ = await ask(cwm, *said, headers={"x-session-id": "fork"})
    session = await cwm.registry.session(TENANT, fork)
    assert session is not None
    assert session.origin == (await turns_of(cwm, named))[0].id
    assert [turn.joined for turn in await turns_of(cwm, named)] == ["client"]


async def test_where_messages_are_not_kept_no_ids_are_either(cwm: Gateway) -> None:
    cwm.turns.keep = KeepPolicies(KeepPolicy(messages=False))
    one, answer = await ask(cwm, user("Look."))
    assert [turn.calls for turn in await turns_of(cwm, one)] == [None]
    assert (await ask(cwm, user("Look."), answer, result(answer)))[0] == one


async def test_an_id_is_stored_as_a_digest(cwm: Gateway) -> None:
    one, answer = await ask(cwm, user("Look."))
    (turn,) = await turns_of(cwm, one)
    assert turn.calls is not None
    assert answer["content"][0]["id"] not in turn.calls


@pytest.fixture
async def fleet(vllm: FakeVllm, tmp_path: Path, postgres_url: str) -> AsyncIterator[list[Gateway]]:
    """Three gateways on one database."""
    vllm.call_id = lambda: f"chatcmpl-tool-{uuid4().hex}"
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                gateway(
                    settings_for(vllm.url),
                    tmp_path,
                    capture=CapturePolicies(Capture.ALL),
                    database_url=postgres_url,
                )
            )
            for _ in range(3)
        ]


@pytest.mark.parametrize("calls", [True, False])
async def test_several_gateways_give_each_of_equal_conversations_one_continuation(
    fleet: list[Gateway], calls: bool
) -> None:
    begun = [await ask(cwm, user("Look."), calls=calls) for cwm in fleet * 3]

    async def goes_on(number: int, said: dict[str, Any]) -> str:
        more = (said, result(said) if calls else user("Go on."))
        return (await ask(fleet[(number + 1) % 3], user("Look."), *more))[0]

    gone_on = await asyncio.gather(*(goes_on(number, said) for number, (_, said) in enumerate(begun)))
    assert sorted(gone_on) == sorted(session_id for session_id, _ in begun)
    if calls:
        assert gone_on == [session_id for session_id, _ in begun]
    for session_id, _ in begun:
        turns = await turns_of(fleet[0], session_id)
        assert [turn.joined for turn in turns] == [None, "id" if calls else "assumed"]


async def test_two_resumes_of_one_conversation_at_once_are_siblings(fleet: list[Gateway]) -> None:
    one, answer = await ask(fleet[0], user("Look."), system=f"{SYSTEM} Clean.")
    said = (user("Look."), answer, result(answer))
    resumed = await asyncio.gather(
        *(ask(cwm, *said, system=f"{SYSTEM} {number} files") for number, cwm in enumerate(fleet))
    )
    assert {session_id for session_id, _ in resumed} == {one}
    for cwm, (_, last) in zip(fleet, resumed, strict=True):
        assert (await ask(cwm, *said, last, result(last)))[0] == one
    assert len(await turns_of(fleet[0], one)) == 7
