"""Takes messages apart for reading: text, code, thinking, tool calls and their results, other parts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from cwm.domain.json_text import laid_out
from cwm.domain.showable import flaw
from cwm.domain.turn import Message
from cwm.services.aside import aside_of

_FOLDED_FROM: Final = 1500
_FOLDED_LINES: Final = 25
_SHOWN: Final = 20_000
_ON_A_PAGE: Final = 60_000
_CUT_TO: Final = 600
_FENCE: Final = re.compile(
    r"^```([\w+#.-]{0,24})[^\n]*\n(.*?)(?:^```[ \t]*$\n?|\Z)", re.MULTILINE | re.DOTALL
)
_THINKING: Final = ("reasoning_content", "reasoning", "thinking")
_KNOWN: Final = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", *_THINKING})


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message. ``kind``: text, code, thinking, call, result or part; ``head`` names it. ``left_out``: characters."""

    kind: str
    head: str
    text: str
    left_out: int = 0

    @property
    def is_folded(self) -> bool:
        if self.kind in {"text", "code"}:
            return len(self.text) > _FOLDED_FROM or self.text.count("\n") >= _FOLDED_LINES
        return True

    @property
    def beginning(self) -> str:
        words = " ".join(self.text[:400].split())
        return f"{words[:100].rstrip()}…" if len(words) > 100 else words


@dataclass(frozen=True, slots=True)
class Said:
    """A message with its ``index`` in the context. ``is_new``: the turn added it. ``is_kept``: its content is there."""

    index: int
    role: str
    pieces: Sequence[Piece]
    is_new: bool
    is_kept: bool = True


async def read(messages: Sequence[Message], first: int, new_from: int) -> list[Said]:
    """Messages from the ``first``-th of a context on. Together they have at most 60,000 characters; the newest go first, and of each a little is shown."""
    contents = [message.content for message in messages]
    return await aside_of(contents, lambda: _read(messages, first, new_from))


def _read(messages: Sequence[Message], first: int, new_from: int) -> list[Said]:
    room, said = _ON_A_PAGE, []
    tools = {call_id: name for message in messages for call_id, name in _called(message.content)}
    for index in range(first + len(messages) - 1, first - 1, -1):
        content = messages[index - first].content
        pieces, own, without = [], max(room, _CUT_TO), 0
        for piece in _pieces(content, tools):
            most = min(_SHOWN, own)
            if most <= 0:
                without += 1
                continue
            pieces.append(Piece(piece.kind, piece.head, piece.text[:most], max(len(piece.text) - most, 0)))
            # A part without text takes room, too.
            own -= len(pieces[-1].text) + 1
        room = min(room, own)
        if without:
            pieces.append(Piece("part", f"{without:,} more parts are not shown", ""))
        role = str(content.get("role", ""))[:40]
        said.append(Said(index, role, pieces, index >= new_from, bool(content)))
    return said[::-1]


def _pieces(content: Mapping[str, Any], tools: Mapping[str, str]) -> Iterator[Piece]:
    for name in _THINKING:
        if text := _text(content.get(name)):
            yield Piece("thinking", "Thinking", text)
    is_result = content.get("role") == "tool"
    body = content.get("content")
    for part in body if isinstance(body, list) else [body]:
        if is_result:
            if text := _text(part.get("text", part) if isinstance(part, dict) else part):
                tool = tools.get(_id(content.get("tool_call_id"))) or _id(content.get("name"))
                yield Piece("result", f"Result of {tool}" if tool else "Result", text)
        else:
            yield from _part(part)
    calls = content.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        yield _call(call)
    if more := {name: value for name, value in content.items() if name not in _KNOWN and value}:
        yield Piece("part", "Other fields", _text(more))


def _part(part: Any) -> Iterator[Piece]:
    if isinstance(part, dict):
        kind = str(part.get("type", ""))
        if kind in {"text", "input_text", "output_text"}:
            yield from _text_and_code(_text(part.get("text")))
        elif kind in {"thinking", "reasoning"}:
            yield Piece("thinking", "Thinking", _text(part.get("thinking") or part.get("text") or part))
        else:
            yield Piece("part", _id(kind) or "Part", _text(part))
    else:
        yield from _text_and_code(_text(part))


def _text_and_code(text: str) -> Iterator[Piece]:
    at = 0
    for fence in _FENCE.finditer(text):
        if before := text[at : fence.start()].strip("\n"):
            yield Piece("text", "", before)
        yield Piece("code", fence[1], fence[2].rstrip("\n"))
        at = fence.end()
    if rest := text[at:].strip("\n"):
        yield Piece("text", "", rest)


def _called(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The ids of a message's tool calls, with the names of the tools."""
    calls = content.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(call.get("function"), dict):
            yield _id(call.get("id")), _id(call["function"].get("name"))


def _call(call: Any) -> Piece:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return Piece("call", "Calls a tool", _text(call))
    arguments = function.get("arguments")
    if isinstance(arguments, str) and len(arguments) < _SHOWN:
        with suppress(ValueError, RecursionError):
            # Numbers of any size are shown: as they were written.
            structure = json.loads(arguments, parse_float=str, parse_int=str)
            arguments = laid_out(arguments) if flaw(structure) is None else arguments
    return Piece("call", f"Calls {_id(function.get('name')) or 'a tool'}", _text(arguments))


def _text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _id(value: Any) -> str:
    return value[:100] if isinstance(value, str) else ""
