"""Habits of clients that break the cache, by name, and the repairs against them that a configuration may choose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from cwm.domain.conversation import DATES
from cwm.domain.divergence import Cause, Habit, common_chars
from cwm.domain.messages import plain_text

_BILLING_BLOCK: Final = re.compile(
    r"^x-anthropic-billing-header:(?:[ \t]*[\w.-]+=[^;\n]*(?:;|$))*[ \t]*\n?", re.MULTILINE
)
_SYSTEM: Final = ("system", "developer")
_AROUND: Final = 80
# Where somebody speaks of a day, it is the user's own unless the line says what it is.
_NAMES_DATE: Final = re.compile(r"\b(?:today|time|datetime)\b|(?<![a-z])date(?![a-z])", re.IGNORECASE)
# What begins a block that clients write anew, and what ends it.
_BLOCKS: Final = (
    (
        Habit.GIT_STATUS,
        "This is the git status at the start of the conversation",
        ("</system-reminder>", "</context>", "\n# "),
    ),
    (Habit.MOVED_REMINDER, "<system-reminder>", ("</system-reminder>",)),
)
_ORDERS: Final = (Cause.TOOL_ORDER, Cause.MOVED)
_COMPARED: Final = (Cause.SYSTEM_TEXT, Cause.EDITED, Cause.UNRELATED)
# What stands behind all that was said in each request: reminders, and aider's files and rules.
_ALWAYS_LAST: Final = (
    "<system-reminder>",
    "*added these files to the chat*",
    "I am not sharing any files that you can edit yet",
    "*SEARCH/REPLACE block* Rules",
    "# File editing rules:",
)
# What a client documents against its habit, by the beginning of its User-Agent. Only Claude Code writes a billing block,
# whoever passes it on.
_SWITCHES: Final = (
    (Habit.BILLING_BLOCK, "", "CLAUDE_CODE_ATTRIBUTION_HEADER=0"),
    (Habit.GIT_STATUS, "claude-cli/", "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS=1"),
)


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
    if any(_is_within(_BILLING_BLOCK.finditer(text), at) for text in texts):
        return Habit.BILLING_BLOCK
    if all(_is_date(text, at, by_name=new.get("role") not in _SYSTEM) for text in texts):
        return Habit.DATE
    return next(
        (
            name
            for name, beginning, ends in _BLOCKS
            if any(_is_in_block(text, at, beginning, ends) for text in texts)
        ),
        None,
    )


def switch_against(habit: Habit, user_agent: str) -> str | None:
    """The client's own switch against its habit, as it documents it."""
    return next(
        (
            switch
            for name, beginning, switch in _SWITCHES
            if name is habit and user_agent.startswith(beginning)
        ),
        None,
    )


def without_billing_block(text: str) -> str:
    return _BILLING_BLOCK.sub("", text)


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


def _is_in_block(text: str, at: int, beginning: str, ends: tuple[str, ...]) -> bool:
    """Whether a block with this beginning stands at ``at``, or begins there."""
    at += len(text[at : at + _AROUND]) - len(text[at : at + _AROUND].lstrip())
    start = text.rfind(beginning, 0, at + len(beginning))
    return start >= 0 and all(not 0 <= text.find(end, start) < at for end in ends)
