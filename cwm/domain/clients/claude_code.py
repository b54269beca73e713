"""Claude Code."""

from __future__ import annotations

import re
from typing import Any, Final

from cwm.domain.clients.client import (
    KEY_VARIABLE,
    Access,
    Block,
    Client,
    Headers,
    OwnFile,
    Part,
    Protocol,
    json_text,
    servers_text,
)
from cwm.domain.clients.habit import Habit
from cwm.domain.conversation import ClientConversation

BILLING_HEADER: Final = "x-anthropic-billing-header"
"""Begins the first block of its system text, which has a digest of the first message."""
GIT_STATUS: Final = Block(
    Habit.GIT_STATUS,
    "This is the git status at the start of the conversation",
    ("</system-reminder>", "</context>", "\n# "),
)
_SESSION: Final = "x-claude-code-session-id"
_AGENT: Final = "x-claude-code-agent-id"


def _conversation(headers: Headers) -> ClientConversation | None:
    """A sub-agent's is its own."""
    session, agent = headers.get(_SESSION), headers.get(_AGENT)
    if not session:
        return None
    return ClientConversation(f"{session}_{agent}", session) if agent else ClientConversation(session)


def _context(access: Access) -> dict[str, str]:
    """It takes a model that it does not know for one of 200,000 tokens."""
    if access.context_tokens is None:
        return {}
    return {
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(access.context_tokens),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(access.answer_tokens),
    }


def _llm(access: Access) -> list[Part]:
    lines = [
        f"export ANTHROPIC_BASE_URL={access.url}",
        f'export ANTHROPIC_AUTH_TOKEN="{access.key}"',
        f"export ANTHROPIC_MODEL={access.model} ANTHROPIC_SMALL_FAST_MODEL={access.model}",
    ]
    if context := _context(access):
        lines.append("export " + " ".join(f"{name}={value}" for name, value in context.items()))
    return [Part("in the shell that starts claude", "\n".join(lines))]


def _mcp(access: Access) -> list[Part]:
    header = f' --header "Authorization: Bearer {access.key}"' if access.keyed else ""
    return [Part("once, in a shell", f"claude mcp add --transport http cwm {access.url}/mcp{header}")]


def _settings(access: Access) -> str:
    """Without the key: its settings refer to no variables."""
    key = {} if access.keyed else {"ANTHROPIC_AUTH_TOKEN": "none"}
    variables: dict[str, Any] = {
        "ANTHROPIC_BASE_URL": access.url,
        **key,
        "ANTHROPIC_MODEL": access.model,
        "ANTHROPIC_SMALL_FAST_MODEL": access.model,
        **_context(access),
    }
    return json_text({"env": variables})


def _servers(access: Access) -> str:
    address = {"type": "http", "url": f"{access.url}/mcp"}
    return servers_text(access, "mcpServers", address, f"${{{KEY_VARIABLE}}}")


CLAUDE_CODE: Final = Client(
    "claude-code",
    "Claude Code",
    Protocol.MESSAGES,
    _llm,
    _mcp,
    files=(OwnFile(".claude/settings.local.json", (_settings,)), OwnFile(".mcp.json", (_servers,))),
    headers=(_SESSION, _AGENT),
    conversation=_conversation,
    call_meta="claudecode/toolUseId",
    tool_name="mcp__cwm__{}",
    summary="This session is being continued from a previous conversation",
    aside_words=(("Your task is to create a detailed summary of ", "<analysis>", "<summary>"),),
    preamble=re.compile(rf"^{BILLING_HEADER}:(?:[ \t]*[\w.-]+=[^;\n]*(?:;|$))*[ \t]*\n?", re.MULTILINE),
    blocks=(GIT_STATUS,),
    switches={
        Habit.BILLING_BLOCK: "CLAUDE_CODE_ATTRIBUTION_HEADER=0",
        Habit.GIT_STATUS: "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS=1",
    },
    own_habits=frozenset({Habit.BILLING_BLOCK}),
    user_agents=("claude-cli/",),
    resume="claude --continue",
)
