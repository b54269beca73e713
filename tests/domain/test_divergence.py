"""Where a request leaves what was said, and why."""

from __future__ import annotations

import pytest

from cwm.domain.divergence import Cause, Divergence, divergence
from cwm.domain.messages import message_of
from cwm.domain.turn import Message, Profile

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
        ([*LINE[:2], *said("aWon."), *LINE[3:]], Divergence(2, Cause.RENDERED, "assistant")),
        ([LINE[0], *LINE[3:], *said("uThree?")], Divergence(1, Cause.DROPPED, "user")),
        ([*LINE[:3], *said("uReminder."), *LINE[3:]], Divergence(3, Cause.INSERTED, "user")),
        (LINE[:4], Divergence(4, Cause.REPEATED)),
    ],
    ids=["extended", "system", "edited", "unrelated", "rendered", "dropped", "inserted", "repeated"],
)
def test_the_first_message_that_differs_is_named_with_its_cause(
    asked: list[Message], expected: Divergence | None
) -> None:
    line = [message.digest for message in LINE]
    assert divergence(asked, AGENT, line, AGENT) == expected


def test_other_tools_are_the_cause_where_the_messages_are_equal() -> None:
    line = [message.digest for message in LINE]
    assert divergence(LINE, Profile("system", "more tools"), line, AGENT) == Divergence(0, Cause.TOOLS)
