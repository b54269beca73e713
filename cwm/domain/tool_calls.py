"""Tool calls in a model's answer, beside the calls that its client then makes of an MCP server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cwm.domain.clients.known import bare_tool_name
from cwm.domain.messages import canonical_message

_MOST_NESTED: Final = 16


@dataclass(frozen=True, slots=True)
class PendingCall:
    """``name`` is the client's for the tool, which may have a prefix; ``arguments`` are parsed, None if they are no JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None

    def is_of(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether its client calls this tool with these arguments for it, also through a tool that runs others."""
        if self.arguments is None:
            return False
        if _is_called(self.name, tool) and self.arguments == arguments:
            return True
        return self._runs(tool, arguments)

    def _runs(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        values = [*(self.arguments or {}).values()][:_MOST_NESTED]
        return any(isinstance(value, str) and _is_called(value, tool) for value in values) and any(
            value == arguments for value in values if isinstance(value, Mapping)
        )


def calls_in(content: Mapping[str, Any]) -> Sequence[PendingCall]:
    """The tool calls of an assistant's message."""
    calls = canonical_message(content).get("tool_calls")
    return [_call(call) for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []


def _call(call: Mapping[str, Any]) -> PendingCall:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    return PendingCall(
        str(call.get("id") or ""), str(function.get("name") or ""), _parsed(function.get("arguments"))
    )


def _parsed(arguments: Any) -> Mapping[str, Any] | None:
    """Without arguments there is no text."""
    if not arguments:
        return {}
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) else None


def _is_called(name: str, tool: str) -> bool:
    """Most clients put the name before it that their configuration gives CWM: mcp__cwm__window_freeze, cwm_window_freeze."""
    return bare_tool_name(name) == tool or name.endswith((f"_{tool}", f".{tool}", f"/{tool}"))
