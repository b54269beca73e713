"""Transcripts as text and in the format of Anthropic's Messages API. They are recorded in the format of OpenAI's chat API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cwm.domain.showable import flaw
from cwm.domain.turn import Message


def anthropic(messages: Iterable[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The system text, and the messages as content blocks; neighbours of one role become one message."""
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") in ("system", "developer"):
            system += [str(block["text"]) for block in _blocks(message.get("content")) if "text" in block]
            continue
        role = "assistant" if message.get("role") in ("assistant", "completion") else "user"
        blocks = _content(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def plain(messages: Iterable[Mapping[str, Any]]) -> str:
    """The messages to read: each with its role in brackets, and an empty line after it."""
    return "".join(f"[{message.get('role', '')}]\n{text_of(message)}\n\n" for message in messages)


def text_of(message: Mapping[str, Any]) -> str:
    """What a message says, its tool calls included."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(
            str(part.get("text", json.dumps(part, ensure_ascii=False)))
            for part in content
            if isinstance(part, dict)
        )
    elif content is not None and not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False)
    calls = [f"{function.get('name')}({function.get('arguments')})" for _, function in _calls(message)]
    return "\n".join(filter(None, (content, *calls)))


def warning(messages: Sequence[Message]) -> str | None:
    """What is missing of a transcript; None if nothing is."""
    unkept = sum(not message.content for message in messages)
    if unkept:
        return (
            f"{unkept} of {len(messages)} messages are not kept (keep.messages: none). include_tokens gives "
            "the token ids of the context, from which its text can be rebuilt."
        )
    return (
        None
        if messages
        else "This context was recorded without messages; include_tokens gives its token ids."
    )


def _content(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    blocks = _blocks(message.get("content"))
    if message.get("role") == "tool":
        return [{"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": blocks}]
    return blocks + [
        {
            "type": "tool_use",
            "id": call.get("id", ""),
            "name": function.get("name", ""),
            "input": _arguments(function.get("arguments")),
        }
        for call, function in _calls(message)
    ]


def _calls(message: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The calls of functions in a message, each with its function."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
            yield call, function


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        return [] if content is None else [{"type": "text", "text": json.dumps(content)}]
    return [_block(part) for part in content if isinstance(part, dict)]


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    image = part.get("image_url")
    if part.get("type") == "image_url" and isinstance(image, dict):
        return {"type": "image", "source": {"type": "url", "url": image.get("url", "")}}
    return dict(part)


def _arguments(arguments: Any) -> Any:
    """Tool input as an object; text that is no JSON object, or one that cannot be shown, is kept under ``text``."""
    try:
        value = json.loads(arguments or "{}")
    except (TypeError, ValueError, RecursionError):
        value = arguments
    return value if isinstance(value, dict) and flaw(value) is None else {"text": arguments or value}
