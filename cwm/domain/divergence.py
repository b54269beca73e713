"""Divergence: where a request first leaves what its session recorded, and why; and where the engine's cache ended before that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Final

from cwm.domain.clients.habit import Habit
from cwm.domain.clients.known import CLIENTS
from cwm.domain.messages import plain_text
from cwm.domain.turn import Message, Profile, Turn

_SYSTEM: Final = ("system", "developer")
_CHARS_BEFORE: Final = 40
_CHARS_AFTER: Final = 80
_SUMMARIES: Final = tuple(client.summary for client in CLIENTS if client.summary)


class Cause(StrEnum):
    """Why a request does not extend the current turn, as far as its messages tell; ``TEMPLATE`` is told by its tokens.

    ``TOOL_ORDER``: it has the same tools in another order. ``MOVED``: a message stands behind what came after it. ``REPEATED``: it ends
    earlier, as a retry does. ``RENDERED``: an answer came back with other words than it had. ``COMPACTED``: a summary stands in place of the
    first messages. ``TEMPLATE``: it has all messages, and they were rendered to other tokens than were recorded.
    """

    SYSTEM_TEXT = "system_text"
    TOOLS = "tools"
    TOOL_ORDER = "tool_order"
    MOVED = "moved"
    COMPACTED = "compacted"
    EDITED = "edited"
    DROPPED = "dropped"
    INSERTED = "inserted"
    RENDERED = "rendered"
    TEMPLATE = "template"
    REPEATED = "repeated"
    UNRELATED = "unrelated"


@dataclass(frozen=True, slots=True)
class Divergence:
    """``message`` is the index of the first message that differs; with other tools it is 0.

    There the request has the message with the digest ``new`` in place of ``old`` (None: no message). ``habit``: the client's that it comes from.
    """

    message: int
    cause: Cause
    role: str = ""
    old: str | None = None
    new: str | None = None
    habit: Habit | None = None


class Miss(StrEnum):
    """Why an engine computed KV that it, or another, had computed before: the likely cause."""

    EVICTED = "evicted"
    ANOTHER_ENGINE = "another_engine"


def miss(turn: Turn, parent: Turn, block: int) -> Miss | None:
    """Why more of an ended turn's prompt was computed than its parent predicts; None if it was not.

    Predicted is the KV of the tokens that they share, in whole blocks of so many tokens; one block less is no miss. A parent that ended after
    the turn was asked predicts nothing.
    """
    if turn.cached_tokens is None or parent.ended_at is None or parent.ended_at > turn.asked_at:
        return None
    predicted = min(turn.parent_at, turn.prompt_tokens - 1) // block * block
    if turn.cached_tokens + block >= predicted:
        return None
    return Miss.EVICTED if parent.cache_salt in {None, turn.cache_salt} else Miss.ANOTHER_ENGINE


def words_around(old: str, new: str) -> tuple[str, str]:
    """Of both texts a few words around the first character that differs."""
    common = common_chars(old, new)
    start = max(common - _CHARS_BEFORE, 0)
    if start:
        start = max(old.rfind(" ", 0, common - _CHARS_BEFORE // 2) + 1, start)
    return _cut(old, start, common), _cut(new, start, common)


def common_chars(old: str, new: str) -> int:
    """How many characters both texts begin with."""
    return bisect_left(range(min(len(old), len(new))), 1, key=lambda end: old[: end + 1] != new[: end + 1])


def _cut(text: str, start: int, common: int) -> str:
    end = common + _CHARS_AFTER
    words = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{words}{'…' if end < len(text) else ''}"


def divergence(
    messages: Sequence[Message], profile: Profile, line: Sequence[str], line_profile: Profile
) -> Divergence | None:
    """Where ``messages`` leave those with the digests ``line``; None if they extend them all."""
    digests = [message.digest for message in messages]
    index = next(
        (at for at, (mine, theirs) in enumerate(zip(digests, line, strict=False)) if mine != theirs),
        min(len(digests), len(line)),
    )
    if profile.agent[1] != line_profile.agent[1] and index:
        return Divergence(0, Cause.TOOLS)
    if profile.tool_order != line_profile.tool_order and line_profile.tool_order and index:
        return Divergence(0, Cause.TOOL_ORDER)
    if index == len(line):
        return None
    if index == len(digests):
        return Divergence(index, Cause.REPEATED, old=line[index])
    role = str(messages[index].content.get("role", ""))
    if role not in _SYSTEM and replaces_beginning(messages, line):
        return Divergence(index, Cause.COMPACTED, role, line[index], digests[index])
    cause = _cause(role, index, digests, line, [message.content.get("role") for message in messages])
    return Divergence(index, cause, role, line[index], digests[index])


def replaces_beginning(messages: Sequence[Message], line: Sequence[str]) -> bool:
    """Whether a user's message that the ``line`` does not have, a summary, stands where its first messages did, before its last answers.

    What stands for as many messages as it is may be an edit of the first question: only its words say that it is a summary.
    """
    digests = set(line)
    before = [*takewhile(lambda message: not _is_answer(message) or message.digest not in digests, messages)]
    opening = next((message for message in before if message.content.get("role") == "user"), None)
    if opening is None or opening.digest in digests or len(before) == len(messages):
        return False
    answers = [message.digest for message in messages[len(before) :] if _is_answer(message)]
    replaced = _place_from_end(answers, line)
    if len(before) != replaced:
        return len(before) < replaced
    text = plain_text(opening.content)
    return any(words in text for words in _SUMMARIES)


def _is_answer(message: Message) -> bool:
    return message.content.get("role") == "assistant"


def _place_from_end(answers: Sequence[str], line: Sequence[str]) -> int:
    """Where the first of these answers stands in the line, counted from its end: those of few words stand in it several times."""
    places: dict[str, list[int]] = {}
    for at, digest in enumerate(line):
        places.setdefault(digest, []).append(at)
    place = len(line)
    for digest in reversed(answers):
        earlier = places.get(digest, [])
        if (count := bisect_left(earlier, place)) > 0:
            place = earlier[count - 1]
    return place


def _cause(
    role: str, index: int, digests: Sequence[str], line: Sequence[str], roles: Sequence[object]
) -> Cause:
    if _moved(index, digests, line):
        return Cause.MOVED
    if role in _SYSTEM:
        return Cause.SYSTEM_TEXT
    if digests[index] in line[index + 1 :]:
        return Cause.DROPPED
    if line[index] in digests[index + 1 :]:
        return Cause.INSERTED
    if role == "assistant":
        return Cause.RENDERED
    has_none = all(each in _SYSTEM for each in roles[:index]) and set(line).isdisjoint(digests[index:])
    return Cause.UNRELATED if has_none else Cause.EDITED


def _moved(index: int, digests: Sequence[str], line: Sequence[str]) -> bool:
    """Whether the line's message stands later in the request, and what was said last before it."""
    behind = digests[index:]
    return line[index] in behind and line[-1] in behind[: behind.index(line[index])]
