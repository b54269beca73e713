"""A session is a tree of turns: where each is placed, which is current, and that none is ever overwritten."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.divergence import Cause, divergence
from cwm.domain.errors import SessionNotActiveError, StorageQuotaExceededError, StorageWriteError
from cwm.domain.keep import KeepPolicies, KeepPolicy, TreeLimit
from cwm.domain.prefix import TokenIds
from cwm.domain.turn import Turn, TurnQuery
from tests.services.replicas_of import ANN
from tests.services.turns.talk import AGENT, TITLE, answered, asked, assistant, took, user
from tests.services.windows_of import Gateway, gateway

START: TokenIds = tuple(range(100, 140))


@pytest.fixture
async def session(cwm: Gateway) -> None:
    await cwm.open_session(ANN, "s1")


pytestmark = pytest.mark.usefixtures("session")


async def context(cwm: Gateway, turn: Turn) -> TokenIds:
    return await cwm.registry.turn_tokens(turn)


async def current(cwm: Gateway) -> str | None:
    turn = await cwm.registry.current_turn("acme", "s1")
    return None if turn is None else turn.id


async def test_a_turn_continues_the_one_whose_whole_context_its_prompt_begins_with(cwm: Gateway) -> None:
    first = await took(cwm, START)
    prompt = (*START, 7, 8, 9, 50, 51)
    second = await took(cwm, prompt, (1, 2))
    assert (first.parent, first.parent_at) == (None, 0)
    assert (second.parent, second.parent_at, second.continues) == (first.id, 43, True)
    assert await context(cwm, second) == (*prompt, 1, 2)
    assert await current(cwm) == second.id
    assert await cwm.registry.session_tokens("acme", "s1") == (*prompt, 1, 2)


async def test_an_answer_that_is_rendered_again_is_left_at_its_first_other_token(cwm: Gateway) -> None:
    first = await took(cwm, START)
    second = await took(cwm, (*START, 7, 8, 60, 61))
    assert (second.parent, second.parent_at, second.continues) == (first.id, 42, True)


async def test_a_prompt_that_leaves_another_prompt_half_way_is_a_branch(cwm: Gateway) -> None:
    first = await took(cwm, START)
    second = await took(cwm, (*START[:20], 60, 61))
    assert (second.parent, second.parent_at, second.continues) == (first.id, 20, False)
    assert await context(cwm, first) == (*START, 7, 8, 9)


async def test_two_turns_with_one_prompt_are_siblings(cwm: Gateway) -> None:
    first = await took(cwm, START)
    prompt = (*START, 7, 8, 9, 50)
    one, other = await took(cwm, prompt, (1,)), await took(cwm, prompt, (2,))
    assert one.parent == other.parent == first.id
    goes_on = await took(cwm, (*prompt, 1, 51))
    assert (goes_on.parent, goes_on.parent_at) == (one.id, 45)


async def test_two_first_turns_with_one_prompt_have_no_parent(cwm: Gateway) -> None:
    one, other = await took(cwm, START, (1,)), await took(cwm, START, (2,))
    assert one.parent is other.parent is None


async def test_what_shares_only_the_beginning_of_an_ancestor_branches_off_that_one(cwm: Gateway) -> None:
    first = await took(cwm, START)
    await took(cwm, (*START, 7, 8, 9, 50))
    branch = await took(cwm, (*START[:10], 60))
    assert (branch.parent, branch.parent_at) == (first.id, 10)


async def test_a_turn_goes_on_from_any_branch_not_only_from_the_current_one(cwm: Gateway) -> None:
    first = await took(cwm, START)
    title = await took(cwm, (*START, 7, 8, 9, 60, 61, 62), profile=TITLE)
    agent = await took(cwm, (*START, 7, 8, 9, 50))
    again = await took(cwm, (*START, 7, 8, 9, 60, 61, 62, 7, 8, 9, 63), profile=TITLE)
    assert (title.parent, agent.parent, again.parent) == (first.id, first.id, title.id)
    assert await current(cwm) == agent.id


async def test_a_title_is_never_the_context(cwm: Gateway) -> None:
    conversation = await took(cwm, START)
    title = await took(cwm, (1, 2, 3), profile=TITLE)
    assert not title.main
    assert await current(cwm) == conversation.id


async def test_a_turn_that_was_asked_before_the_current_one_and_ends_after_it_does_not_win(
    cwm: Gateway,
) -> None:
    late = await asked(cwm)
    late_id = late.id
    second = await took(cwm, (*START, 50))
    assert await answered(late, START, (1,) * 120) is not None
    assert await current(cwm) == second.id
    recorded = await cwm.registry.turn("acme", late_id or "")
    assert recorded is not None
    assert not recorded.main
    assert await context(cwm, recorded) == (*START, *(1,) * 120)


async def test_a_turn_that_leaves_no_answer_is_forgotten(cwm: Gateway) -> None:
    turn = await asked(cwm)
    await turn.close()
    assert await cwm.registry.turns("acme", "s1", TurnQuery()) == []


async def test_a_turn_that_could_not_be_forgotten_is_when_the_next_one_is_asked(sqlite: Database) -> None:
    class Away(SqlRegistry):
        away = True

        async def drop_turn(self, turn: Turn) -> None:
            if self.away:
                raise StorageWriteError("Away.")
            await super().drop_turn(turn)

    registry = Away(sqlite, "me")
    cwm = gateway(sqlite, registry=registry)
    lost = await asked(cwm)
    await lost.close()
    assert len(await cwm.registry.turns("acme", "s1", TurnQuery())) == 1
    registry.away = False
    turn = await took(cwm, START)
    assert [each.id for each in await cwm.registry.turns("acme", "s1", TurnQuery())] == [turn.id]


async def test_the_messages_are_those_of_the_whole_path(cwm: Gateway) -> None:
    said = [user("How many?")]
    await took(cwm, START, messages=said, text="Three.")
    said += [assistant("Three."), user("Which?")]
    second = await took(cwm, (*START, 7, 8, 9, 50), messages=said, text="All.")
    assert second.parent_messages == 2
    assert [m.content for m in await cwm.registry.turn_messages(second)] == [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "Three."},
        {"role": "user", "content": "Which?"},
        {"role": "assistant", "content": "All."},
    ]


async def test_an_edited_message_leaves_what_was_said_before_it(cwm: Gateway) -> None:
    said = [user("a"), assistant("b"), user("c")]
    await took(cwm, START, messages=said, text="d")
    edited = await took(cwm, (*START[:30], 60), messages=[*said[:2], user("e")], text="f")
    assert edited.parent_messages == 2
    assert edited.main
    contents = [m.content["content"] for m in await cwm.registry.turn_messages(edited)]
    assert contents == ["a", "b", "e", "f"]


async def test_a_tenant_without_messages_has_the_tokens_and_still_sees_what_diverged(cwm: Gateway) -> None:
    cwm.turns.keep = KeepPolicies(by_tenant={"acme": KeepPolicy(messages=False)})
    said = [user("a"), assistant("b"), user("c")]
    first = await took(cwm, START, messages=said, text="d")
    assert [m.content for m in await cwm.registry.turn_messages(first)] == [{}, {}, {}, {}]
    assert await context(cwm, first) == (*START, 7, 8, 9)
    edited = [*said[:2], user("e")]
    left = divergence(edited, AGENT, await cwm.registry.message_digests(first), first.profile)
    assert left is not None
    assert (left.message, left.cause) == (2, Cause.EDITED)
    second = await took(cwm, (*START[:30], 60), messages=edited, text="f")
    assert (second.parent_messages, second.main) == (2, True)


async def test_a_session_that_is_full_loses_side_branches_and_then_takes_no_turn(cwm: Gateway) -> None:
    cwm.turns.keep = KeepPolicies(KeepPolicy(tree=TreeLimit(turns=3)))
    first = await took(cwm, START)
    title = await took(cwm, (60, 61), profile=TITLE)
    second = await took(cwm, (*START, 7, 8, 9, 50))
    third = await took(cwm, (*START, 7, 8, 9, 50, 7, 8, 9, 51))
    assert await cwm.registry.turn("acme", title.id) is None
    assert ("session.make_room", "removed") in await cwm.events()
    with pytest.raises(StorageQuotaExceededError) as full:
        await asked(cwm)
    assert "turn_branch opens one at any turn" in full.value.message
    assert full.value.context["turns"] == 3
    turns = await cwm.registry.turns("acme", "s1", TurnQuery())
    assert [turn.id for turn in turns] == [third.id, second.id, first.id]


async def test_a_session_that_is_frozen_takes_no_turn(cwm: Gateway) -> None:
    await took(cwm, START)
    await cwm.freeze(ANN, "s1", "w")
    with pytest.raises(SessionNotActiveError):
        await asked(cwm)
