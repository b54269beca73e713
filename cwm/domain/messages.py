"""Messages of a conversation: two transmissions of one message have one digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final

from cwm.domain.errors import InvalidParameterError
from cwm.domain.turn import Message, Profile

REMINDER: Final = "<system-reminder>"
"""Begins what several clients add to a message of the user's."""
_DIGEST_CHARS: Final = 32
_ORDER_CHARS: Final = 8
_INLINE_MEDIA_CHARS: Final = 4096
_SHORT_CHARS: Final = 1024
_READ_CHARS: Final = 2000
_BRIEF_CHARS: Final = 160
_PLAIN: Final = frozenset({"role", "content"})
_MEDIA_ENDINGS: Final = ("data", "embeds")
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})
_SYSTEM: Final = ("system", "developer")
# They say how to send or store a message, which may change each time it is sent.
_TRANSPORT_MARKS: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def message_of(content: Mapping[str, Any]) -> Message:
    """The message with its digest. A large medium in it is replaced by its digest ``sha256:…`` and its size in ``bytes``.

    CWM-1003 if it is nested too deeply.
    """
    if content.keys() == _PLAIN:
        role, text = content["role"], content["content"]
        if isinstance(role, str) and isinstance(text, str) and len(text) <= _SHORT_CHARS:
            return Message(_digest_of_text(role, text), dict(content))
    content = _without_large_media(content)
    return Message(_digest(_json(canonical_message(content))), content)


# A client sends all earlier messages again with each turn.
@lru_cache(maxsize=4096)
def _digest_of_text(role: str, text: str) -> str:
    return _digest(_json(canonical_message({"role": role, "content": text})))


def profile_of(messages: Iterable[Mapping[str, Any]], tools: Any) -> Profile:
    """The profile of a request with these messages and, if it is a list, these ``tools``.

    CWM-1003 if the tools are nested too deeply.
    """
    beginning = takewhile(lambda message: message.get("role") in _SYSTEM, messages)
    system = "\n".join(text for message in beginning for text in _texts(message.get("content")))
    definitions = [_json(_essence(tool)) for tool in tools] if isinstance(tools, list) else []
    return Profile(_digest(system), _tools_digest(definitions))


def _tools_digest(definitions: list[str]) -> str:
    in_any_order, in_this_order = _digest("\n".join(sorted(definitions))), _digest("\n".join(definitions))
    return f"{in_any_order}.{in_this_order[:_ORDER_CHARS]}" if definitions else ""


def plain_text(content: Mapping[str, Any]) -> str:
    """What a message says: its text, and the tools that it calls."""
    calls = content.get("tool_calls")
    call_texts = [_json(_canonical_call(call)) for call in calls] if isinstance(calls, list) else []
    return "\n".join([*_texts(content.get("content")), *call_texts])


@dataclass(frozen=True, slots=True)
class Brief:
    """Who said a message, and its first words; empty where it is not kept."""

    role: str = ""
    words: str = ""


def in_brief(content: Mapping[str, Any]) -> Brief:
    """The first words of the last text that a message has, in one line; a client's reminders do not count."""
    texts = [text for text in _texts(content.get("content")) if not text.lstrip().startswith(REMINDER)]
    words = " ".join(texts[-1][:_READ_CHARS].split()) if texts else ""
    words = words if len(words) <= _BRIEF_CHARS else f"{words[:_BRIEF_CHARS].rstrip()}…"
    return Brief(str(content.get("role", "")), words)


def canonical_message(content: Mapping[str, Any]) -> dict[str, Any]:
    """What all transmissions of a message have in common: the canonical form of a canonical form is itself.

    Clients leave out the reasoning when they send an answer back, and change the white space around it.
    """
    role, text, calls = (content.get(name) for name in ("role", "content", "tool_calls"))
    text = _canonical_content(text)
    return _filled(
        {
            "role": "system" if role == "developer" else role,
            "content": text.strip() if role == "assistant" and isinstance(text, str) else text,
            "name": content.get("name"),
            "tool_call_id": content.get("tool_call_id"),
            "tool_calls": [_canonical_call(call) for call in calls] if isinstance(calls, list) else calls,
        }
    )


def _canonical_content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    parts = [part for part in map(_canonical_part, content) if part != {"type": "text"}]
    return parts[0]["text"] if len(parts) == 1 and _is_text(parts[0]) else parts


def _canonical_part(part: Any) -> Any:
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    return _filled({"type": "text", "text": part["text"]}) if _is_text(part) else _essence(part)


def _canonical_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return _essence(call)
    arguments = _canonical_arguments(function.get("arguments"))
    function = _filled({"name": function.get("name"), "arguments": arguments})
    return _filled({"id": call.get("id"), "function": function})


def _canonical_arguments(arguments: Any) -> str:
    """Clients parse arguments and serialise them again; to those in JavaScript 1.0 is 1. Without arguments some send {}."""
    text = arguments if isinstance(arguments, str) else _json(arguments)
    try:
        value = json.loads(text, parse_float=_number)
        return "" if value in _EMPTY else _ENCODER.encode(value)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _essence(value: Any) -> Any:
    """A content part or a tool without transport marks and empty fields."""
    if not isinstance(value, dict):
        return value
    return _filled(
        {name: _filled(inner) if isinstance(inner, dict) else inner for name, inner in value.items()}
    )


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    return {n: value for n, value in fields.items() if value not in _EMPTY and n not in _TRANSPORT_MARKS}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _texts(content: Any) -> list[str]:
    parts = content if isinstance(content, list) else [content]
    texts = (part["text"] if _is_text(part) else part for part in parts)
    return [text for text in texts if isinstance(text, str)]


def _without_large_media(content: Mapping[str, Any]) -> dict[str, Any]:
    parts = content.get("content")
    if not isinstance(parts, list):
        return dict(content)
    return {**content, "content": [_small_part(part) for part in parts]}


def _small_part(part: Any) -> Any:
    """The media of a part are in its fields, or in those of an object in it."""
    if not isinstance(part, dict) or _is_text(part):
        return part
    return _small_fields(
        {name: _small_fields(inner) if isinstance(inner, dict) else inner for name, inner in part.items()}
    )


def _small_fields(fields: dict[str, Any]) -> dict[str, Any]:
    small = dict(fields)
    for name, value in fields.items():
        if isinstance(value, str) and len(value) > _INLINE_MEDIA_CHARS and _is_medium(name, value):
            medium = value.encode(errors="surrogatepass")
            small |= {name: f"sha256:{hashlib.sha256(medium).hexdigest()}", "bytes": len(medium)}
    return small


def _is_medium(name: str, value: str) -> bool:
    return name.endswith(_MEDIA_ENDINGS) or (name.endswith("url") and value[:5].lower() == "data:")


def _json(value: Any) -> str:
    try:
        return _ENCODER.encode(value)
    except RecursionError as error:
        raise InvalidParameterError(
            "'messages' or 'tools' are nested too deeply.", field="messages"
        ) from error


def _digest(text: str) -> str:
    """Empty for an empty text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_CHARS] if text else ""
