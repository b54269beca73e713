"""Items of OpenAI's Responses API as messages of a chat, in the order in which vLLM's ``construct_input_messages`` makes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from cwm.adapters.vllm.turns.body import objects
from cwm.domain.response import REFERENCE

_CALLS: Final = ("function_call", "custom_tool_call")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_TEXTS: Final = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
# vLLM shows a custom tool to the model as a function with one argument of this name.
_CUSTOM_INPUT: Final = "input"
_SEPARATOR: Final = "__"
# What clients call the parts of an earlier answer.
_ANSWERED: Final = ("output_text", "text")
# What an assistant's items add to the message before them, where that has none yet.
_MERGED: Final = ("content", "reasoning")


def input_messages(instructions: Any, items: Any) -> list[dict[str, Any]]:
    """The messages of a request."""
    messages: list[dict[str, Any]] = []
    if instructions and isinstance(instructions, str):
        messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    for item in objects(items):
        message = _message(item)
        if message is not None and not (messages and _merges(messages[-1], message)):
            messages.append(message)
    return messages


def answer_message(items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that the items of an answer are."""
    messages = input_messages(None, list(items))
    answer: dict[str, Any] = messages[0] if messages else {"role": "assistant"}
    for message in messages[1:]:
        for name, value in message.items():
            if name != "role":
                answer[name] = answer[name] + value if answer.get(name) else value
    return {"role": "assistant", "content": "", **answer}


def input_items(input_value: Any) -> tuple[dict[str, Any], ...]:
    """The items of a request, whose input may be a text."""
    if isinstance(input_value, str):
        return ({"type": "message", "role": "user", "content": input_value},)
    return tuple(objects(input_value))


def whole_answers(items: Any) -> Any:
    """The items with each earlier answer as a text, where vLLM would not take it whole: of several parts it reads the first, and of an item without a type it refuses them."""
    if not isinstance(items, list):
        return items
    return [_whole_answer(item) if isinstance(item, dict) else item for item in items]


def _whole_answer(item: dict[str, Any]) -> dict[str, Any]:
    parts = item.get("content")
    if item.get("role") != "assistant" or not isinstance(parts, list) or not parts:
        return item
    if not all(isinstance(part, dict) and part.get("type") in _ANSWERED for part in parts):
        return item
    if len(parts) == 1 and "type" in item:
        return item
    return {"type": "message", "role": "assistant", "content": _joined(parts)}


def references(items: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The ids of the items that stand for earlier ones."""
    return tuple(
        str(item.get("id")) for item in items if item.get("type") == REFERENCE or (item.keys() == {"id"})
    )


def media_in(items: Any) -> Iterator[dict[str, Any]]:
    """Every object in the items that may name a medium, however deep it is."""
    values = [items]
    while values:
        value = values.pop()
        if isinstance(value, list):
            values += value
        elif isinstance(value, dict):
            yield value
            # Sources that an answer quoted.
            values += (inner for name, inner in value.items() if name != "annotations")


def _message(item: Mapping[str, Any]) -> dict[str, Any] | None:
    kind, role = item.get("type", "message"), item.get("role")
    if kind in _CALLS:
        return {"role": "assistant", "tool_calls": [_call(item)]}
    if kind == "reasoning":
        parts = objects(item.get("content")) or objects(item.get("summary"))
        return {"role": "assistant", "reasoning": parts[0].get("text") if parts else ""}
    if kind in _OUTPUTS:
        return {
            "role": "tool",
            "content": _content(item.get("output")),
            "tool_call_id": item.get("call_id"),
        }
    if role == "assistant":
        return {"role": role, "content": _answer_text(item.get("content"))}
    return None if role is None else {"role": role, "content": _content(item.get("content"))}


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = item.get("name"), item.get("arguments")
    if item.get("type") == "custom_tool_call":
        arguments = json.dumps({_CUSTOM_INPUT: item.get("input") or ""}, ensure_ascii=False)
    elif namespace := item.get("namespace"):
        name = f"{namespace}{_SEPARATOR}{name}"
    function = {"name": name, "arguments": arguments}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _merges(before: dict[str, Any], message: Mapping[str, Any]) -> bool:
    """Whether an assistant's message became a part of the one before."""
    if before["role"] != "assistant" or message["role"] != "assistant":
        return False
    if calls := message.get("tool_calls"):
        before["tool_calls"] = [*before.get("tool_calls", ()), *calls]
        return True
    name = next((name for name in _MERGED if name in message), None)
    if name is None or before.get(name) is not None:
        return False
    before[name] = message[name]
    return True


def _answer_text(content: Any) -> Any:
    parts = objects(content)
    if not parts:
        return content
    if all(part.get("type") in _ANSWERED for part in parts):
        return _joined(parts)
    return parts[0].get("text", parts[0].get("refusal"))


def _joined(parts: Iterable[Mapping[str, Any]]) -> str:
    return "".join(str(part.get("text") or "") for part in parts)


def _content(content: Any) -> Any:
    return (
        [_part(part) if isinstance(part, dict) else part for part in content]
        if isinstance(content, list)
        else content
    )


def _part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in _TEXTS:
        return {"type": "text", "text": part.get("text")}
    if kind == "input_image":
        detail = part.get("detail", "auto")
        image = {"url": part.get("image_url")} | ({} if detail == "auto" else {"detail": detail})
        return {"type": "image_url", "image_url": image}
    return part
