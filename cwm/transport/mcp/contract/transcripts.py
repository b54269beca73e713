"""Transcripts in the format of Anthropic's Messages API. They are recorded in the format of OpenAI's chat API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def anthropic(messages: Iterable[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The system text, and the messages as content blocks; neighbours of one role become one message."""
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") in {"system", "developer"}:
            system += [block["text"] for block in _blocks(message.get("content")) if "text" in block]
            continue
        role = "assistant" if message.get("role") in {"assistant", "completion"} else "user"
        blocks = _content(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def _content(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    blocks = _blocks(message.get("content"))
    if message.get("role") == "tool":
        return [{"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": blocks}]
    return blocks + [
        {
            "type": "tool_use",
            "id": call.get("id", ""),
            "name": call["function"].get("name", ""),
            "input": _arguments(call["function"].get("arguments")),
        }
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
    ]


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_block(part) for part in content or () if isinstance(part, dict)]


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    image = part.get("image_url")
    if part.get("type") == "image_url" and isinstance(image, dict):
        return {"type": "image", "source": {"type": "url", "url": image.get("url", "")}}
    return dict(part)


def _arguments(arguments: Any) -> Any:
    """Tool input as an object; text that is no JSON object is kept under ``text``."""
    try:
        value = json.loads(arguments or "{}")
    except (TypeError, ValueError):
        value = arguments
    return value if isinstance(value, dict) else {"text": value}
