"""Repairs of a request's fields, whatever its protocol: what breaks the engine's cache and means nothing to the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from cwm.domain.habits import Repair, without_billing_block

_SYSTEM: Final = ("system", "developer")
_TEXTS: Final = ("system", "instructions")
_MESSAGES: Final = ("messages", "input")


def repaired(fields: Mapping[str, Any], repairs: Collection[Repair]) -> dict[Repair, dict[str, Any]]:
    """The fields that each wanted repair changes, with their new values; nothing for one that changes none."""
    changes = {
        Repair.BILLING_BLOCK: {
            **{name: _without_block(fields[name]) for name in _TEXTS if name in fields},
            **{name: _messages(fields[name]) for name in _MESSAGES if name in fields},
        },
        Repair.TOOL_ORDER: {"tools": _in_order(fields["tools"])} if "tools" in fields else {},
    }
    values_by_repair = {
        repair: {name: value for name, value in changes[repair].items() if value != fields[name]}
        for repair in Repair
        if repair in repairs
    }
    return {repair: values for repair, values in values_by_repair.items() if values}


def _messages(messages: Any) -> Any:
    """The messages without the block in system texts. A message that consists of it is left out."""
    if not isinstance(messages, list):
        return messages
    remainder = []
    for message in messages:
        if (
            isinstance(message, dict)
            and message.get("role") in _SYSTEM
            and (content := message.get("content"))
        ):
            without = _without_block(content)
            if without:
                remainder.append({**message, "content": without})
        else:
            remainder.append(message)
    return remainder


def _without_block(content: Any) -> Any:
    """A text, or a list of parts, without the block and without parts that consist of it."""
    if isinstance(content, str):
        return without_billing_block(content)
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content]
    return [part for part in parts if part is not None]


def _part(part: Any) -> Any:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str) or (without := without_billing_block(text)) == text:
        return part
    return {**part, "text": without} if without else None


def _in_order(tools: Any) -> Any:
    return sorted(tools, key=_name) if isinstance(tools, list) else tools


def _name(tool: Any) -> str:
    """The name of a tool; of one that has none, its kind."""
    function = tool.get("function") if isinstance(tool, dict) else None
    definition = function if isinstance(function, dict) else tool
    return str(definition.get("name") or definition.get("type")) if isinstance(definition, dict) else ""
