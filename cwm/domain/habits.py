"""Habits of clients that break the cache, by name, and the repairs against them that a configuration may choose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from cwm.domain.clients.client import Block
from cwm.domain.clients.habit import Habit
from cwm.domain.clients.known import CLIENTS
from cwm.domain.conversation import DATES
from cwm.domain.divergence import Cause, common_chars
from cwm.domain.messages import REMINDER, plain_text

_SYSTEM: Final = ("system", "developer")
_AROUND: Final = 80
# Where somebody speaks of a day, it is the user's own unless the line says what it is.
_NAMES_DATE: Final = re.compile(r"\b(?:today|time|datetime)\b|(?<![a-z])date(?![a-z])", re.IGNORECASE)
_PREAMBLES: Final = tuple(client.preamble for client in CLIENTS if client.preamble is not None)
_BLOCKS: Final = (
    *dict.fromkeys(block for client in CLIENTS for block in client.blocks),
    Block(Habit.MOVED_REMINDER, REMINDER, ("</system-reminder>",)),
)
_ORDERS: Final = (Cause.TOOL_ORDER, Cause.MOVED)
_COMPARED: Final = (Cause.SYSTEM_TEXT, Cause.EDITED, Cause.UNRELATED)
# What stands behind all that was said in each request.
_ALWAYS_LAST: Final = (REMINDER, *(words for client in CLIENTS for words in client.last_words))


class Repair(StrEnum):
    """What CWM changes in requests of chosen clients: it leaves the billing block out, and sends tools in the order of their names."""

    BILLING_BLOCK = "billing_block"
    TOOL_ORDER = "tool_order"


@dataclass(frozen=True, slots=True)
class RepairPolicies:
    """Repairs by patterns of the ``User-Agent``; every pattern that matches counts. ``by_tenant`` replaces ``default``."""

    default: Mapping[str, tuple[Repair, ...]] = field(default_factory=dict)
    by_tenant: Mapping[str, Mapping[str, tuple[Repair, ...]]] = field(default_factory=dict)

    def of(self, tenant: str, user_agent: str) -> frozenset[Repair]:
        by_pattern = self.by_tenant.get(tenant, self.default)
        return frozenset(
            repair
            for pattern, repairs in by_pattern.items()
            if fnmatchcase(user_agent, pattern)
            for repair in repairs
        )


def habit(cause: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Habit | None:
    """The habit by which a request left what was recorded for this ``cause``; None if it is none that CWM knows.

    ``old`` and ``new`` are the contents of the messages there; None where they are not kept. The first difference counts.
    """
    if cause in _ORDERS:
        return _habit_of_order(cause, old)
    if cause not in _COMPARED or not old or not new:
        return None
    texts = plain_text(old), plain_text(new)
    if texts[0] == texts[1]:
        return None
    at = common_chars(*texts)
    if any(_is_within(preamble.finditer(text), at) for preamble in _PREAMBLES for text in texts):
        return Habit.BILLING_BLOCK
    if all(_is_date(text, at, by_name=new.get("role") not in _SYSTEM) for text in texts):
        return Habit.DATE
    return next(
        (block.habit for block in _BLOCKS if any(_is_in_block(text, at, block) for text in texts)), None
    )


def switch_against(habit: Habit, user_agent: str) -> str | None:
    """The client's own switch against its habit, as it documents it."""
    return next(
        (
            client.switches[habit]
            for client in CLIENTS
            if habit in client.switches and (habit in client.own_habits or client.is_behind(user_agent))
        ),
        None,
    )


def without_billing_block(text: str) -> str:
    for preamble in _PREAMBLES:
        text = preamble.sub("", text)
    return text


def _habit_of_order(cause: str, moved: Mapping[str, Any] | None) -> Habit | None:
    if cause == Cause.TOOL_ORDER:
        return Habit.REORDERED_TOOLS
    text = plain_text(moved or {})
    return Habit.MOVED_REMINDER if any(words in text for words in _ALWAYS_LAST) else None


def _is_within(matches: Iterator[re.Match[str]], at: int) -> bool:
    return any(match.start() <= at < match.end() for match in matches)


def _is_date(text: str, at: int, *, by_name: bool) -> bool:
    """Whether a date stands at ``at``; with ``by_name``, in a line that says so."""
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    line = text[max(start, at - _AROUND) : min(len(text) if end < 0 else end, at + _AROUND)]
    at -= max(start, at - _AROUND)
    if by_name and _NAMES_DATE.search(line) is None:
        return False
    return any(match.start() <= at <= match.end() for match in DATES.finditer(line))


def _is_in_block(text: str, at: int, block: Block) -> bool:
    """Whether the block stands at ``at``, or begins there."""
    at += len(text[at : at + _AROUND]) - len(text[at : at + _AROUND].lstrip())
    start = text.rfind(block.beginning, 0, at + len(block.beginning))
    return start >= 0 and all(not 0 <= text.find(end, start) < at for end in block.ends)
