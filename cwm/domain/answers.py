"""What a request and a recorded answer can have in common: the digests by which the session of an unnamed conversation is found."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cwm.domain.conversation import chained, chains, without_dates
from cwm.domain.messages import canonical_message
from cwm.domain.session import Session
from cwm.domain.surroundings import without_surroundings
from cwm.domain.turn import Message, Turn

_SYSTEM: Final = ("system", "developer")
# What engines draw: 'chatcmpl-tool-' and half of a UUID, 'call_' and 24 letters, Mistral's nine. Kimi's 'functions.look:0' counts.
_TAIL: Final = re.compile(r"[A-Za-z0-9]{16,128}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UUID_CHARS: Final = 36
_NINE: Final = re.compile(r"(?=.{0,8}[0-9])(?=.{0,8}[A-Z])(?=.{0,8}[a-z])[A-Za-z0-9]{9}")
_LEAST_DIGITS: Final = 3
_LONGEST_ID: Final = 128


class KeyKind(StrEnum):
    """By what recorded answers are looked for: see :class:`AnswerKeys`."""

    CHAIN = "chain"
    CORE_CHAIN = "core_chain"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class AnswerKeys:
    """Digests of a conversation up to and with one answer.

    ``chain``: all that was said. ``core_chain``: without the system text and a client's surroundings. ``calls``: the answer's tool calls
    alone, with their ids, names and arguments; None unless an engine drew an id at random.
    """

    chain: str
    core_chain: str
    calls: str | None

    def of(self, kind: KeyKind) -> str | None:
        return {KeyKind.CHAIN: self.chain, KeyKind.CORE_CHAIN: self.core_chain, KeyKind.CALLS: self.calls}[
            kind
        ]


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """The digests of a request's messages: of all of them, and at each answer in them, the last answer first."""

    chain: str
    core_chain: str
    answers: Sequence[AnswerKeys]


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A recorded turn that has this ``key``, in its live or frozen session.

    ``is_current``: the session's context ends with it; ``is_awaited``: a later turn of the session is in flight. ``next_number``: of the session's next turn.
    """

    key: str
    turn: Turn
    session: Session
    is_current: bool
    is_awaited: bool
    next_number: int


def request_keys(messages: Sequence[Message], most: int, *hints: str) -> RequestKeys:
    """The keys of a request with at least one message, at its last answers (at most so many). What has other hints has other keys."""
    values = chains(messages, *hints)
    core_values = core_chains(messages, *hints)
    positions = [at for at, message in enumerate(messages) if message.content.get("role") == "assistant"]
    answers = [
        AnswerKeys(values[at], core_values[at], calls_digest(messages[at], *hints))
        for at in reversed(positions[-most:])
    ]
    return RequestKeys(values[-1], core_values[-1], answers)


def core_chains(messages: Sequence[Message], *hints: str) -> list[str]:
    """As :func:`chains`, without system texts, and without the surroundings that stand before the first answer."""
    chain, values, is_opening = chained("core", *hints), [], True
    for message in messages:
        role = message.content.get("role")
        is_opening = is_opening and role != "assistant"
        if role not in _SYSTEM:
            chain = _with_message(chain, message, is_opening=is_opening)
        values.append(chain)
    return values


def _with_message(chain: str, message: Message, *, is_opening: bool) -> str:
    if not is_opening:
        return chained(chain, message.digest)
    content = canonical_message(message.content)
    inner = content.get("content")
    parts = [_core_of(part) for part in (inner if isinstance(inner, list) else [inner])]
    left = [part for part in parts if part]
    return chained(chain, json.dumps([content.get("role"), left], sort_keys=True)) if left else chain


def _core_of(part: Any) -> Any:
    """A part of a message's content, or its whole text, without surroundings and dates; anything but a text stays."""
    text = part.get("text") if isinstance(part, Mapping) else part
    return without_dates(without_surroundings(text)).strip() if isinstance(text, str) else part


def calls_digest(message: Message, *hints: str) -> str | None:
    """The digest of an answer's tool calls, which no other answer has; None where no id of them is random."""
    calls = canonical_message(message.content).get("tool_calls")
    if not isinstance(calls, list) or not any(_is_random(call) for call in calls):
        return None
    return chained("calls", *hints, json.dumps(calls, sort_keys=True))


def _is_random(call: Any) -> bool:
    value = call.get("id") if isinstance(call, Mapping) else None
    return isinstance(value, str) and is_random_id(value)


def is_random_id(call_id: str) -> bool:
    """Whether an engine drew this id of a tool call, so that no other answer has it."""
    if len(call_id) > _LONGEST_ID or not call_id.isascii():
        return False
    if _NINE.fullmatch(call_id):
        return True
    tail = re.split(r"[^A-Za-z0-9]", call_id)[-1]
    if _UUID.fullmatch(call_id[-_UUID_CHARS:]):
        tail = call_id[-_UUID_CHARS:]
    elif not _TAIL.fullmatch(tail):
        return False
    is_mixed = tail.lower() != tail != tail.upper()
    digits = {letter for letter in tail if letter.isdecimal()}
    return len(digits) >= (1 if is_mixed else _LEAST_DIGITS)
