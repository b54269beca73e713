"""Which turns of a session are its conversation, and which are titles, summaries and sub-agents."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cwm.domain.main_line import Standing, may_become_current, rival, standing
from cwm.domain.turn import Profile, Turn, TurnState

AGENT = Profile("agent's system text", "its tools")
CHAT = Profile()
TOLD = Profile("a chat's system text")


def a_turn(number: int = 2, *, profile: Profile = AGENT, prompt: int = 100, **more: Any) -> Turn:
    turn = Turn("acme", "s", f"t{number}", "ann", datetime(2026, 1, 1, tzinfo=UTC), number)
    return replace(
        turn, profile=profile, prompt_tokens=prompt, total_tokens=prompt + 10, state=TurnState.ENDED, **more
    )


@pytest.mark.parametrize(
    ("profile", "prompt", "extends", "carries"),
    [
        (AGENT, 200, True, True),
        (AGENT, 200, False, True),
        (AGENT, 20, False, False),
        (replace(AGENT, system="with another date"), 200, False, True),
        (replace(AGENT, tools="one more tool"), 200, False, True),
    ],
    ids=["continued", "edited", "compacted", "a new system text", "new tools"],
)
def test_the_line_goes_on_with(profile: Profile, prompt: int, extends: bool, carries: bool) -> None:
    turn = a_turn(profile=profile, prompt=prompt)
    assert standing(turn, a_turn(1), extends=extends, carries=carries) is Standing.NEXT


@pytest.mark.parametrize(
    ("profile", "carries"),
    [
        (Profile("a sub-agent's", "its tools"), False),
        (Profile("a sub-agent's", "other tools"), False),
        (replace(AGENT, tools=""), True),
        (CHAT, False),
    ],
    ids=["a sub-agent", "one with other tools", "a summary of it all", "a title"],
)
def test_the_line_of_an_agent_does_not_go_on_with(profile: Profile, carries: bool) -> None:
    turn = a_turn(profile=profile, prompt=900)
    assert standing(turn, a_turn(1), extends=False, carries=carries) is Standing.SIDE


def test_a_turn_whose_client_says_that_it_goes_on_from_a_summary_is_the_next() -> None:
    current = a_turn(1, compactions=0)
    asked = a_turn(profile=CHAT, compactions=1)
    assert unrelated(asked, current) is Standing.NEXT
    assert may_become_current(asked, current)
    for same in (a_turn(profile=CHAT, compactions=0), a_turn(profile=CHAT)):
        assert unrelated(same, current) is Standing.SIDE
        assert not may_become_current(same, current)


def unrelated(turn: Turn, current: Turn | None) -> Standing:
    return standing(turn, current, extends=False, carries=False)


def test_the_first_turn_begins_the_line() -> None:
    assert unrelated(a_turn(profile=CHAT), None) is Standing.NEXT


def test_a_title_that_ended_first_gives_way_to_the_turn_with_tools_whichever_was_asked_first() -> None:
    assert unrelated(a_turn(), a_turn(1, profile=CHAT, prompt=900)) is Standing.FIRST
    assert unrelated(a_turn(1), a_turn(2, profile=CHAT, prompt=900)) is Standing.FIRST


def test_without_tools_the_line_is_what_has_the_longest_prompt() -> None:
    conversation = a_turn(1, profile=TOLD, prompt=500)
    assert unrelated(a_turn(profile=TOLD, prompt=50), conversation) is Standing.SIDE
    title = a_turn(1, profile=TOLD, prompt=50)
    assert unrelated(a_turn(profile=TOLD, prompt=500), title) is Standing.FIRST
    assert unrelated(a_turn(profile=TOLD, prompt=50), title) is Standing.NEXT


@pytest.mark.parametrize("prompt", [50, 500, 900])
def test_without_system_text_too_what_has_nothing_of_the_line_is_a_side_turn_however_long(
    prompt: int,
) -> None:
    conversation = a_turn(1, profile=CHAT, prompt=500)
    assert unrelated(a_turn(profile=CHAT, prompt=prompt), conversation) is Standing.SIDE


def test_a_title_that_ended_first_gives_way_to_the_chat_that_was_asked_before_it() -> None:
    chat, title = a_turn(1, profile=CHAT, prompt=50), a_turn(2, profile=CHAT, prompt=500)
    assert may_become_current(chat, title)
    assert unrelated(chat, title) is Standing.FIRST
    for current in (
        replace(title, parent="t0"),
        replace(title, session_id="of a window"),
        replace(title, profile=TOLD),
    ):
        assert not may_become_current(chat, current)
        assert unrelated(chat, current) is Standing.SIDE
    assert unrelated(replace(chat, abandoned=True), title) is Standing.SIDE


def test_tools_that_come_in_the_middle_of_a_conversation_do_not_begin_it_anew() -> None:
    for extends, carries in ((True, False), (False, True)):
        assert standing(a_turn(), a_turn(1, profile=CHAT), extends=extends, carries=carries) is Standing.NEXT


def test_a_turn_whose_client_did_not_wait_gives_way_to_the_next_and_never_takes_over() -> None:
    given_up = a_turn(1, profile=CHAT, prompt=500, abandoned=True)
    assert unrelated(a_turn(profile=CHAT, prompt=50), given_up) is Standing.NEXT
    assert unrelated(given_up, a_turn(profile=CHAT, prompt=50)) is Standing.SIDE


def test_a_turn_in_flight_may_become_current_if_it_has_the_lines_system_text_and_tools() -> None:
    assert may_become_current(a_turn(profile=CHAT), None)
    assert may_become_current(a_turn(), a_turn(1))
    assert not may_become_current(a_turn(1), a_turn(2))
    assert may_become_current(a_turn(1), a_turn(2, profile=CHAT))
    assert not may_become_current(a_turn(profile=CHAT), a_turn(1))
    assert not may_become_current(a_turn(profile=Profile("a sub-agent's", "its tools")), a_turn(1))


def test_two_conversations_that_take_turns_leave_a_doubt() -> None:
    first, other = a_turn(1, main=True), a_turn(2, main=True)
    again = a_turn(3, main=True, parent="t1", parent_at=110)
    current = a_turn(4, main=True, parent="t2", parent_at=110)
    turns = [first, other, again, current]
    assert rival(turns, current) == again
    assert rival(turns[:3], again) == other


def test_a_side_branch_that_was_continued_leaves_a_doubt_and_a_title_does_not() -> None:
    current = a_turn(1, profile=CHAT, prompt=500, main=True)
    title = a_turn(2, profile=CHAT, prompt=50)
    assert rival([current, title], current) is None
    continued = a_turn(3, profile=CHAT, prompt=70, parent="t2", parent_at=60, continues=True)
    assert rival([current, title, continued], current) == continued
    agent = replace(continued, profile=AGENT)
    assert rival([current, title, agent], current) is None


def test_a_side_branch_is_found_also_where_all_prompts_begin_alike() -> None:
    first = a_turn(1, profile=CHAT, main=True)
    other = a_turn(2, profile=CHAT, parent="t1", parent_at=5)
    assert rival([first, other], first) is None
    continued = a_turn(3, profile=CHAT, parent="t2", parent_at=110, continues=True)
    assert rival([first, other, continued], first) == continued
    rewritten = replace(continued, continues=False, parent_at=90, parent_messages=2)
    assert rival([first, other, rewritten], first) == rewritten
    assert rival([first, other, replace(rewritten, parent_messages=1)], first) is None
    on = a_turn(4, profile=CHAT, main=True, parent="t1", parent_at=110, continues=True)
    assert rival([first, other, continued, on], on) == continued


def test_what_was_edited_retried_or_compacted_leaves_no_doubt() -> None:
    first = a_turn(1, main=True)
    edited = a_turn(2, main=True, parent="t1", parent_at=110)
    edit = a_turn(3, main=True, parent="t1", parent_at=110)
    compacted = a_turn(4, main=True, parent="t1", parent_at=30)
    goes_on = a_turn(5, main=True, parent="t4", parent_at=110)
    title = a_turn(6, profile=CHAT)
    turns = [first, edited, edit, compacted, goes_on, title]
    assert rival(turns, goes_on) is None
    assert rival(turns[:3], edit) is None
    assert rival([first], first) is None


def test_a_repeated_request_is_no_second_conversation_whichever_answer_is_gone_on_with() -> None:
    first = a_turn(1, main=True)
    asked = a_turn(2, main=True, parent="t1", prompt_digest="the same")
    again = a_turn(3, main=True, parent="t1", prompt_digest="the same")
    more = a_turn(4, main=True, parent="t3", prompt_digest="of the second answer")
    goes_on = a_turn(5, main=True, parent="t2", prompt_digest="of the first answer")
    turns = [first, asked, again, more, goes_on]
    assert rival(turns, goes_on) is None
    assert rival([*turns[:2], replace(again, prompt_digest="another"), more, goes_on], goes_on) == more
