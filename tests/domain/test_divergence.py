"""Where a request leaves what was said, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cwm.domain.divergence import (
    Cause,
    Divergence,
    Miss,
    divergence,
    miss,
    replaces_beginning,
    words_around,
)
from cwm.domain.messages import message_of
from cwm.domain.turn import Message, Profile, Turn
from tests.contracts.nouns import LATER, NOW, a_turn

AGENT = Profile("system", "tools")


def said(*texts: str) -> list[Message]:
    """``s``, ``u`` or ``a``, for system, user or assistant, and a text."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [message_of({"role": roles[text[0]], "content": text[1:]}) for text in texts]


LINE = said("sBe terse.", "uOne?", "aOne.", "uTwo?", "aTwo.")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([*LINE, *said("uThree?")], None),
        ([*said("sBe kind."), *LINE[1:]], Divergence(0, Cause.SYSTEM_TEXT, "system")),
        ([*LINE[:3], *said("uThree?")], Divergence(3, Cause.EDITED, "user")),
        ([*LINE[:1], *said("uThree?")], Divergence(1, Cause.UNRELATED, "user")),
        ([*LINE[:1], *said("uOne, a.py?"), *LINE[2:]], Divergence(1, Cause.EDITED, "user")),
        ([*LINE[:2], *said("aWon."), *LINE[3:]], Divergence(2, Cause.RENDERED, "assistant")),
        ([LINE[0], *LINE[3:], *said("uThree?")], Divergence(1, Cause.DROPPED, "user")),
        ([*LINE[:3], *said("uReminder."), *LINE[3:]], Divergence(3, Cause.INSERTED, "user")),
        ([*LINE[:1], *LINE[2:], LINE[1], *said("uThree?")], Divergence(1, Cause.MOVED, "assistant")),
        ([*LINE[1:], LINE[0]], Divergence(0, Cause.MOVED, "user")),
        (LINE[:4], Divergence(4, Cause.REPEATED)),
        ([LINE[0], *said("uSo far: one."), LINE[4], LINE[1]], Divergence(1, Cause.COMPACTED, "user")),
    ],
    ids=[
        "extended",
        "system",
        "edited",
        "unrelated",
        "edited before its answers",
        "rendered",
        "dropped",
        "inserted",
        "moved",
        "moved system",
        "repeated",
        "compacted with a reminder behind it",
    ],
)
def test_the_first_message_that_differs_is_named_with_its_cause(
    asked: list[Message], expected: Divergence | None
) -> None:
    line = [message.digest for message in LINE]
    left = divergence(asked, AGENT, line, AGENT)
    assert (left and replace(left, old=None, new=None)) == expected


CLAUDE_CODE = "uThis session is being continued from a previous conversation that ran out of context. A door."


@pytest.mark.parametrize(
    ("line", "asked", "expected"),
    [
        ("uOne? aDone. uTwo? aDone.", "uSo-far aDone. uThree?", True),
        ("uOne? aDone. uTwo? aDone. uThree? aDone.", "uSo-far aDone. uThree? aDone. uFour?", True),
        ("uOne? aOne. uTwo? aDone.", "uSo-far aFine. aDone. uThree?", True),
        ("uOne? aDone. uTwo? aDone.", "uOne! aDone. uTwo? aDone. uThree?", False),
        ("uOne? aDone.", "uOne! aDone. uTwo?", False),
        ("uOne? aDone. uTwo? aDone.", "uOne? aDone. uTwo! aDone. uThree?", False),
        ("uOne? aDone.", "uOne! aFine. uTwo?", False),
    ],
)
def test_a_summary_stands_for_more_messages_than_it_is_before_the_answers_that_the_line_ends_with(
    line: str, asked: str, *, expected: bool
) -> None:
    digests = [message.digest for message in said(*line.split())]
    assert replaces_beginning(said(*asked.split()), digests) is expected


def test_a_summary_of_one_question_is_told_from_an_edit_by_its_client_s_words() -> None:
    line = [message.digest for message in said("uOne?", "aDone.")]
    assert replaces_beginning(said(CLAUDE_CODE, "aDone.", "uTwo?"), line)


def test_both_messages_are_named_where_they_differ() -> None:
    line = [message.digest for message in LINE]
    asked = [*LINE[:3], *said("uThree?")]
    edited, repeated = divergence(asked, AGENT, line, AGENT), divergence(LINE[:4], AGENT, line, AGENT)
    assert edited is not None
    assert repeated is not None
    assert (edited.old, edited.new) == (line[3], asked[3].digest)
    assert (repeated.old, repeated.new) == (line[4], None)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("One two", "One three", ("One two", "One three")),
        ("", "One", ("", "One")),
        (
            f"{'begin ' * 50}old {'end ' * 50}",
            f"{'begin ' * 50}new",
            (f"…{'begin ' * 4}old {'end ' * 18}end…", f"…{'begin ' * 4}new"),
        ),
        ("x" * 500, "x" * 400, (f"…{'x' * 120}…", f"…{'x' * 40}")),
    ],
    ids=["short", "nothing", "long", "one word"],
)
def test_words_are_those_around_the_first_difference(old: str, new: str, words: tuple[str, str]) -> None:
    assert words_around(old, new) == words


PARENT = a_turn("parent", ended_at=NOW, cache_salt="salt")


@pytest.mark.parametrize(
    ("fields", "parent", "expected"),
    [
        ({"cached_tokens": 96}, PARENT, None),
        ({"cached_tokens": 64}, PARENT, None),
        ({"cached_tokens": 63}, PARENT, Miss.EVICTED),
        ({"cached_tokens": 0, "cache_salt": "other"}, PARENT, Miss.ANOTHER_ENGINE),
        ({"cached_tokens": 0, "cache_salt": "other"}, replace(PARENT, cache_salt=None), Miss.EVICTED),
        ({"cached_tokens": None}, PARENT, None),
        ({"cached_tokens": 0, "prompt_tokens": 64}, PARENT, None),
        ({"cached_tokens": 0}, replace(PARENT, ended_at=LATER), None),
    ],
)
def test_a_cache_that_ended_over_a_block_before_the_parent_does_was_missed(
    fields: dict[str, Any], parent: Turn, expected: Miss | None
) -> None:
    turn = a_turn(asked_at=NOW, cache_salt="salt", parent_at=100, prompt_tokens=120)
    assert miss(replace(turn, **fields), parent, 32) == expected


def test_other_tools_are_the_cause_where_the_messages_are_equal() -> None:
    line = [message.digest for message in LINE]
    assert divergence(LINE, Profile("system", "more tools"), line, AGENT) == Divergence(0, Cause.TOOLS)


def test_so_is_another_order_of_the_same_tools_unless_an_older_record_does_not_have_it() -> None:
    line = [message.digest for message in LINE]
    agent, reordered = Profile("system", "tools.order"), Profile("system", "tools.other")
    assert divergence(LINE, reordered, line, agent) == Divergence(0, Cause.TOOL_ORDER)
    assert divergence(LINE, agent, line, agent) is divergence(LINE, agent, line, AGENT) is None
