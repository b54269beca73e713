"""Divergence: where a request first leaves what its session recorded, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cwm.domain.turn import Message, Profile

_SYSTEM = ("system", "developer")


class Cause(StrEnum):
    """Why a request does not extend the current turn, as far as its messages tell.

    ``REPEATED``: it ends earlier, as a retry does. ``RENDERED``: an answer came back with other words than it had.
    """

    SYSTEM_TEXT = "system_text"
    TOOLS = "tools"
    EDITED = "edited"
    DROPPED = "dropped"
    INSERTED = "inserted"
    RENDERED = "rendered"
    REPEATED = "repeated"
    UNRELATED = "unrelated"


@dataclass(frozen=True, slots=True)
class Divergence:
    """``message`` is the index of the first message that differs; with other tools it is 0."""

    message: int
    cause: Cause
    role: str = ""


def divergence(
    messages: Sequence[Message], profile: Profile, line: Sequence[str], line_profile: Profile
) -> Divergence | None:
    """Where ``messages`` leave those with the digests ``line``; None if they extend them all."""
    digests = [message.digest for message in messages]
    index = next(
        (at for at, (mine, theirs) in enumerate(zip(digests, line, strict=False)) if mine != theirs),
        min(len(digests), len(line)),
    )
    if profile.tools != line_profile.tools and index:
        return Divergence(0, Cause.TOOLS)
    if index == len(line):
        return None
    if index == len(digests):
        return Divergence(index, Cause.REPEATED)
    role = str(messages[index].content.get("role", ""))
    return Divergence(
        index, _cause(role, index, digests, line, [message.content.get("role") for message in messages]), role
    )


def _cause(
    role: str, index: int, digests: Sequence[str], line: Sequence[str], roles: Sequence[object]
) -> Cause:
    if role in _SYSTEM:
        return Cause.SYSTEM_TEXT
    if digests[index] in line[index + 1 :]:
        return Cause.DROPPED
    if line[index] in digests[index + 1 :]:
        return Cause.INSERTED
    if role == "assistant":
        return Cause.RENDERED
    return Cause.UNRELATED if all(each in _SYSTEM for each in roles[:index]) else Cause.EDITED
