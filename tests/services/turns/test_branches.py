"""Going back: other sessions at a turn, earlier turns made current, branches removed, frozen sessions continued."""

from __future__ import annotations

import pytest

from cwm.domain.clients.habit import Habit
from cwm.domain.divergence import divergence
from cwm.domain.errors import (
    InvalidParameterError,
    SessionNotActiveError,
    TurnInFlightError,
    TurnNotFoundError,
    TurnTagExistsError,
    WindowInUseError,
)
from cwm.domain.prefix import TokenIds
from cwm.domain.session import SessionState
from cwm.domain.turn import Turn, TurnQuery, TurnSource
from cwm.services.turns.reading.branches import Branches
from cwm.services.turns.reading.compare import Compare
from cwm.services.turns.reading.history import History
from cwm.services.turns.recording.placement import Said
from tests.services.replicas_of import ANN, BOB
from tests.services.turns.talk import AGENT, answered, asked, assistant, took, user
from tests.services.windows_of import Gateway

START: TokenIds = tuple(range(100, 140))
SECOND: TokenIds = (*START, 7, 8, 9, 50)


@pytest.fixture
def branches(cwm: Gateway) -> Branches:
    return Branches(cwm.registry, cwm.thaw.journal, cwm.clock)


@pytest.fixture
async def first(cwm: Gateway) -> Turn:
    await cwm.open_session(ANN, "s1")
    return await took(cwm, START, messages=[user("One?")], text="One.")


@pytest.fixture
async def second(cwm: Gateway, first: Turn) -> Turn:
    return await took(cwm, SECOND, messages=[user("One?"), assistant("One."), user("Two?")], text="Two.")


async def current(cwm: Gateway) -> str | None:
    turn = await cwm.registry.current_turn("acme", "s1")
    return None if turn is None else turn.id


async def test_a_branch_has_the_turns_context_and_messages_and_goes_on_by_itself(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    branch = await branches.open(ANN, first.id, "b1")
    assert (branch.state, branch.token_count) == (SessionState.ACTIVE, first.total_tokens)
    assert await cwm.registry.session_tokens("acme", "b1") == (*START, 7, 8, 9)
    shown = await History(cwm.registry, cwm.thaw.journal).show(ANN, TurnSource(session_id="b1"))
    assert [message.content["content"] for message in shown.messages] == ["One?", "One."]
    assert (await cwm.history.log(ANN, TurnSource(session_id="b1"))).origin == first.id
    await cwm.says("b1", " and more")
    assert await cwm.registry.session_tokens("acme", "s1") == (*SECOND, 7, 8, 9)
    assert await current(cwm) == second.id


async def test_a_branch_outlives_the_session_that_it_came_from(
    cwm: Gateway, branches: Branches, first: Turn
) -> None:
    await branches.open(ANN, first.id, "b1")
    await cwm.end_session(ANN, "s1")
    assert await cwm.registry.session_tokens("acme", "b1") == (*START, 7, 8, 9)
    shown = await History(cwm.registry, cwm.thaw.journal).show(ANN, TurnSource(session_id="b1"))
    assert len(shown.messages) == 2


async def test_a_turn_that_is_reverted_to_is_current_and_the_later_ones_stay(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    assert (await branches.revert(ANN, first.id)).token_count == first.total_tokens
    assert await current(cwm) == first.id
    third = await took(cwm, (*START, 7, 8, 9, 60))
    assert third.parent == first.id
    assert await current(cwm) == third.id
    assert await cwm.registry.turn("acme", second.id) == second


async def test_a_turn_that_was_in_flight_does_not_move_a_session_that_went_back(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    late = await asked(cwm)
    await branches.revert(ANN, first.id)
    assert await answered(late, (*SECOND, 7, 8, 9, 51), (1,)) is not None
    assert await current(cwm) == first.id
    assert second.main


async def test_a_client_that_sends_everything_again_moves_the_session_again(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    await branches.revert(ANN, first.id)
    again = await took(cwm, (*SECOND, 7, 8, 9, 51))
    assert again.parent == second.id
    assert await current(cwm) == again.id


async def test_a_branch_is_deleted_with_all_that_came_from_it_and_its_messages(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    await branches.revert(ANN, first.id)
    assert await branches.remove(ANN, second.id) == 1
    assert [turn.id for turn in await cwm.registry.turns("acme", "s1", TurnQuery())] == [first.id]
    with pytest.raises(TurnNotFoundError):
        await branches.revert(ANN, second.id)


async def test_what_is_current_in_a_window_or_in_flight_is_not_deleted(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    with pytest.raises(WindowInUseError, match="current turn"):
        await branches.remove(ANN, first.id)
    await cwm.freeze(ANN, "s1", "w1", turn_id=second.id)
    await branches.revert(ANN, first.id)
    with pytest.raises(WindowInUseError, match="w1"):
        await branches.remove(ANN, second.id)
    await cwm.delete(ANN, "w1")
    late = await asked(cwm)
    with pytest.raises(TurnInFlightError):
        await branches.remove(ANN, second.id)
    await late.close()
    assert await branches.remove(ANN, second.id) == 1


async def test_a_frozen_session_goes_on_and_its_window_stays(
    cwm: Gateway, branches: Branches, first: Turn
) -> None:
    await cwm.freeze(ANN, "s1", "w1")
    with pytest.raises(SessionNotActiveError):
        await branches.revert(ANN, first.id)
    assert (await branches.unfreeze(ANN, "s1")).state is SessionState.ACTIVE
    await took(cwm, SECOND)
    window = await cwm.registry.window("acme", "w1")
    assert window is not None
    assert window.token_count == first.total_tokens
    with pytest.raises(SessionNotActiveError):
        await branches.unfreeze(ANN, "s1")


async def test_two_contexts_are_compared_in_tokens_and_messages(
    cwm: Gateway, first: Turn, second: Turn
) -> None:
    other = await took(
        cwm, (*START, 7, 8, 9, 60), messages=[user("One?"), assistant("One."), user("Three?")], text="Three."
    )
    compare = Compare(History(cwm.registry, cwm.thaw.journal), cwm.directory, cwm.thaw.planner)
    difference = await compare(ANN, TurnSource(turn_id=second.id), TurnSource(turn_id=other.id))
    assert (difference.common_tokens, difference.common_messages) == (first.total_tokens, 2)
    assert difference.left_message == user("Two?")
    assert difference.right_message == user("Three?")
    assert difference.reused_tokens + difference.computed_tokens == other.total_tokens
    assert difference.reused_tokens <= difference.common_tokens
    same = await compare(ANN, TurnSource(turn_id=second.id), TurnSource(turn_id=second.id))
    assert (same.common_tokens, same.left_message, same.right_message) == (second.total_tokens, None, None)


async def test_a_tag_names_a_turn_wherever_one_is_named(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    assert (await branches.tag(ANN, "v1.0", first.id)).turn_id == first.id
    history = cwm.history
    assert (await history.show(ANN, TurnSource.parse("tag:v1.0", "left"))).turn == first
    (await branches.open(ANN, "tag:v1.0", "b1")).require_live("a turn")
    await cwm.freeze(ANN, "s1", "w1", turn_id="tag:v1.0")
    window = await cwm.registry.window("acme", "w1")
    assert window is not None
    assert window.turn_id == first.id
    await branches.revert(ANN, "tag:v1.0")
    assert await current(cwm) == first.id
    await branches.tag(ANN, "v1.1", "tag:v1.0")
    assert {tag.name for tag in (await history.log(ANN, TurnSource(session_id="s1"))).tags} == {
        "v1.0",
        "v1.1",
    }


async def test_a_tag_moves_only_if_that_is_meant(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    tag = await branches.tag(ANN, "v1", first.id)
    assert await branches.tag(ANN, "v1", first.id) == tag
    with pytest.raises(TurnTagExistsError):
        await branches.tag(ANN, "v1", second.id)
    assert (await branches.tag(ANN, "v1", second.id, move=True)).turn_id == second.id
    assert (await branches.untag(ANN, "v1")).turn_id == second.id
    with pytest.raises(TurnNotFoundError):
        await branches.untag(ANN, "v1")
    with pytest.raises(TurnNotFoundError):
        await branches.revert(ANN, "tag:v1")
    with pytest.raises(InvalidParameterError):
        await branches.tag(ANN, "no name", first.id)


async def test_a_turn_with_a_tag_is_not_deleted(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    await branches.revert(ANN, first.id)
    await branches.tag(ANN, "v1", second.id)
    with pytest.raises(WindowInUseError, match="tag v1"):
        await branches.remove(ANN, second.id)
    await branches.untag(ANN, "v1")
    assert await branches.remove(ANN, second.id) == 1


async def test_a_tag_keeps_its_turn_and_those_before_it_when_its_session_is_deleted(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    await branches.tag(ANN, "v1", first.id)
    await branches.tag(BOB, "v2", second.id)
    await cwm.end_session(ANN, "s1")
    history = cwm.history
    assert [tag.name for tag in await history.tags(ANN)] == ["v2", "v1"]
    shown = await history.show(ANN, TurnSource(turn_id="tag:v2"), tokens=True)
    assert (len(shown.messages), shown.token_ids) == (4, (*SECOND, 7, 8, 9))
    assert (await branches.open(ANN, "tag:v2", "b1")).token_count == second.total_tokens
    await branches.untag(ANN, "v2")
    assert await cwm.registry.turns("acme", "s1", TurnQuery()) == [first]
    await branches.tag(ANN, "v1", "tag:v1", move=True)
    branch = await cwm.registry.current_turn("acme", "b1")
    assert branch is not None
    await branches.tag(ANN, "v1", branch.id, move=True)
    assert await cwm.registry.session("acme", "s1", any_state=True) is None


async def test_the_log_has_the_words_around_the_place_where_a_request_left_what_was_recorded(
    cwm: Gateway, first: Turn, second: Turn
) -> None:
    said = [user("One?"), assistant("One."), user("Three?")]
    diverged = divergence(said, AGENT, await cwm.registry.message_digests(second), AGENT)
    session = await cwm.registry.session("acme", "s1")
    assert session is not None
    with cwm.turns.begin(ANN, "s1") as turn:
        await turn.ask(session, Said(said, AGENT, diverged=diverged))
    await answered(turn, (*START, 7, 8, 9, 60), (1,), "Three.")
    log = await cwm.history.log(ANN, TurnSource(session_id="s1"))
    assert log.words == {turn.id: ("Two?", "Three?")}


async def test_the_log_and_the_turn_say_by_which_habit_its_client_left_what_was_recorded(
    cwm: Gateway,
) -> None:
    session = await cwm.open_session(ANN, "s1")
    line: list[str] = []
    turns: list[str] = []
    for day in ("2026-11-25", "2026-11-26"):
        said = [user(f"Today's date is {day}."), user("One?")]
        diverged = divergence(said, AGENT, line, AGENT) if line else None
        with cwm.turns.begin(ANN, "s1") as turn:
            await turn.ask(session, Said(said, AGENT, diverged=diverged))
        await answered(turn, (*START, 60), (1,), "One.")
        line, turns = [message.digest for message in said], [*turns, turn.id or ""]
    log = await cwm.history.log(ANN, TurnSource(session_id="s1"))
    assert log.habits == {turns[1]: Habit.DATE}
    assert (await cwm.history.show(ANN, TurnSource(turn_id=turns[1]))).habit is Habit.DATE
    assert (await cwm.history.show(ANN, TurnSource(turn_id=turns[0]))).habit is None


async def test_tags_of_what_one_may_not_see_are_like_those_that_there_are_not(
    cwm: Gateway, branches: Branches, first: Turn, second: Turn
) -> None:
    session = await cwm.registry.session("acme", "s1")
    assert session is not None
    await branches.tag(ANN, "v1", first.id)
    await cwm.share.session(ANN, "s1", "private")
    await cwm.open_session(BOB, "b1")
    with pytest.raises(TurnNotFoundError):
        await branches.open(BOB, "tag:v1")
    with pytest.raises(TurnNotFoundError):
        await branches.untag(BOB, "v1")
    with pytest.raises(TurnNotFoundError):
        await branches.tag(BOB, "v2", second.id)
    assert await cwm.history.tags(BOB) == []
    await cwm.says("b1", "mine")
    mine = await cwm.registry.current_turn("acme", "b1")
    assert mine is not None
    with pytest.raises(TurnTagExistsError):
        await branches.tag(BOB, "v1", mine.id, move=True)
    assert [tag.turn_id for tag in await cwm.history.tags(ANN)] == [first.id]
