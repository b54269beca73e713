"""Agent programs as the engine sees them: how each names its conversation, and in which shape it sends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cwm.domain.clients.client import Protocol
from cwm_bench.agents.conversation import ARGUMENTS, QUESTION, READ, Conversation, tools

Fields = dict[str, Any]

_CALL: Final = "call_1"
_REMINDER: Final = "Reply with changes as blocks of search and replace."


@dataclass(frozen=True, slots=True)
class AgentClient:
    """``named``: the headers of its conversation; ``shape``: the fields that hold it."""

    name: str
    protocol: Protocol
    named: Callable[[str], dict[str, str]]
    shape: Callable[[Conversation], Fields]

    def body(self, conversation: Conversation, model: str, max_tokens: int) -> Fields:
        """A streamed greedy request. The system text begins with the client's name: no two share a prefix."""
        own = Conversation(
            f"You are {self.name}. {conversation.system}", conversation.file, conversation.said
        )
        limit = "max_output_tokens" if self.protocol is Protocol.RESPONSES else "max_tokens"
        return {"model": model, "stream": True, "temperature": 0, limit: max_tokens, **self.shape(own)}


def _message(role: str, content: Any) -> Fields:
    return {"role": role, "content": content}


def _text(text: str, kind: str = "text") -> list[Fields]:
    return [{"type": kind, "text": text}]


def _chat(conversation: Conversation, *before: Fields) -> Fields:
    """``before`` stands between the system text and the question."""
    call = {"name": READ, "arguments": json.dumps(ARGUMENTS)}
    return {
        "messages": [
            _message("system", conversation.system),
            *before,
            _message("user", QUESTION),
            _message("assistant", "") | {"tool_calls": [{"id": _CALL, "type": "function", "function": call}]},
            _message("tool", conversation.file) | {"tool_call_id": _CALL},
            *(_message(role, text) for role, text in conversation.roles()),
        ],
        "tools": [{"type": "function", "function": tool} for tool in tools()],
        "stream_options": {"include_usage": True},
    }


def _qwen(conversation: Conversation) -> Fields:
    setup = "This is the Qwen Code. We are setting up the context for our chat."
    return _chat(
        conversation, _message("user", _text(setup)), _message("assistant", "Got it. Thanks for the context!")
    )


def _aider(conversation: Conversation) -> Fields:
    """It has no tools. Files and a reminder stand behind what was said, so each turn moves them."""
    *statements, question = (QUESTION, *conversation.said)
    return {
        "messages": [
            _message("system", conversation.system),
            *(_message(("user", "assistant")[at % 2], text) for at, text in enumerate(statements)),
            _message("user", f"These are the files that you may change.\n\n{conversation.file}"),
            _message("assistant", "Ok, any changes I propose will be to those files."),
            _message("user", f"{question}\n\n{_REMINDER}"),
        ],
        "stream_options": {"include_usage": True},
    }


def _claude(conversation: Conversation) -> Fields:
    call = {"type": "tool_use", "id": _CALL, "name": READ, "input": ARGUMENTS}
    result = {"type": "tool_result", "tool_use_id": _CALL, "content": conversation.file}
    return {
        "system": _text("x-anthropic-billing-header: cc_version=2.1.197.0df; cc_entrypoint=cli;")
        + _text(conversation.system),
        "messages": [
            _message(
                "user",
                _text("<system-reminder>Today's date is 2026-03-01.</system-reminder>") + _text(QUESTION),
            ),
            _message("assistant", [call]),
            _message("user", [result]),
            *(_message(role, _text(text)) for role, text in conversation.roles()),
        ],
        "tools": [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in tools()
        ],
    }


def _codex(conversation: Conversation) -> Fields:
    def item(role: str, text: str) -> Fields:
        content = _text(text, "output_text" if role == "assistant" else "input_text")
        return {"type": "message"} | _message(role, content)

    return {
        "input": [
            item("developer", conversation.system),
            item("user", "<environment_context>The shell is bash.</environment_context>"),
            item("user", QUESTION),
            {"type": "function_call", "call_id": _CALL, "name": READ, "arguments": json.dumps(ARGUMENTS)},
            {"type": "function_call_output", "call_id": _CALL, "output": conversation.file},
            *(item(role, text) for role, text in conversation.roles()),
        ],
        "tools": [{"type": "function", "strict": False, **tool} for tool in tools()],
        "store": False,
    }


def _nameless(_: str) -> dict[str, str]:
    return {}


OPENCODE: Final = AgentClient("opencode", Protocol.CHAT, lambda own: {"x-session-id": own}, _chat)
CLAUDE_CODE: Final = AgentClient(
    "claude-code",
    Protocol.MESSAGES,
    lambda own: {"X-Claude-Code-Session-Id": own, "anthropic-version": "2023-06-01"},
    _claude,
)
CODEX: Final = AgentClient(
    "codex", Protocol.RESPONSES, lambda own: {"session-id": own, "thread-id": own}, _codex
)
# As `cwm connect aider` has it: nothing but this header names its conversation.
AIDER: Final = AgentClient("aider", Protocol.CHAT, lambda own: {"CWM-Session-Id": own}, _aider)
CLIENTS: Final = (
    CLAUDE_CODE,
    CODEX,
    OPENCODE,
    AgentClient("qwen-code", Protocol.CHAT, _nameless, _qwen),
    AgentClient("continue", Protocol.CHAT, _nameless, _chat),
    AIDER,
)
BY_PROTOCOL: Final = {"chat": OPENCODE, "messages": CLAUDE_CODE, "responses": CODEX}
