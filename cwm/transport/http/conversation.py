"""What clients call their conversations: the headers of each that CWM knows, and those that ``cwm.yaml`` names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from cwm.domain.conversation import ClientConversation

# Of Claude Code, Codex, and opencode and others.
_CLAUDE_SESSION: Final = "x-claude-code-session-id"
_CLAUDE_AGENT: Final = "x-claude-code-agent-id"
_CODEX_SESSION: Final = "session-id"
_CODEX_THREAD: Final = "thread-id"
_CODEX_PARENT: Final = "x-codex-parent-thread-id"
_CODEX_WINDOW: Final = "x-codex-window-id"
_CODEX_METADATA: Final = "x-codex-turn-metadata"
_CODEX_ASIDE: Final = ("compaction", "memory", "prewarm")
_DIGITS: Final = 6
_SESSIONS: Final = ("x-session-id", "x-session-affinity", "agent-session-id")
_PARENT: Final = "x-parent-session-id"


def conversation_of(headers: Mapping[str, str], own: Iterable[str] = ()) -> ClientConversation | None:
    """The conversation that a request's headers, by lower-case name, say it belongs to. A sub-agent's is its own."""
    if session := headers.get(_CLAUDE_SESSION):
        agent = headers.get(_CLAUDE_AGENT)
        return ClientConversation(f"{session}_{agent}", session) if agent else ClientConversation(session)
    session = headers.get(_CODEX_SESSION)
    if thread := headers.get(_CODEX_THREAD) or session:
        # The session is the one that the user began, however deep a sub-agent is.
        parent = headers.get(_CODEX_PARENT) or session
        parent = None if parent == thread else parent
        return ClientConversation(thread, parent, _codex_compactions(headers), _codex_aside(headers))
    for name in (*own, *_SESSIONS):
        if session := headers.get(name):
            parent = headers.get(_PARENT)
            return ClientConversation(session, None if parent == session else parent or None)
    return None


def _codex_compactions(headers: Mapping[str, str]) -> int | None:
    """Codex counts its windows: what it sends from one compaction to the next. The first is 0."""
    number = headers.get(_CODEX_WINDOW, "").rpartition(":")[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= _DIGITS else None


def _codex_aside(headers: Mapping[str, str]) -> bool:
    """Only the kind of the request is read: the metadata have paths and the installation's id, too."""
    try:
        metadata = json.loads(headers.get(_CODEX_METADATA, "{}"))
    except (ValueError, RecursionError):
        return False
    return isinstance(metadata, dict) and metadata.get("request_kind") in _CODEX_ASIDE
