"""Codex."""

from __future__ import annotations

import json
from typing import Final

from cwm.domain.clients.client import KEY_VARIABLE, Access, Client, Headers, OwnFile, Part, Protocol
from cwm.domain.conversation import ClientConversation

_SESSION: Final = "session-id"
_THREAD: Final = "thread-id"
_PARENT: Final = "x-codex-parent-thread-id"
_WINDOW: Final = "x-codex-window-id"
_METADATA: Final = "x-codex-turn-metadata"
_ASIDE: Final = ("compaction", "memory", "prewarm")
_DIGITS: Final = 6
_FILE: Final = "config.toml"


def _conversation(headers: Headers) -> ClientConversation | None:
    session = headers.get(_SESSION)
    thread = headers.get(_THREAD) or session
    if not thread:
        return None
    # The session is the one that the user began, however deep a sub-agent is.
    parent = headers.get(_PARENT) or session
    parent = None if parent == thread else parent
    return ClientConversation(thread, parent, _compactions(headers), _is_aside(headers))


def _compactions(headers: Headers) -> int | None:
    """It counts its windows: what it sends from one compaction to the next. The first is 0."""
    number = headers.get(_WINDOW, "").rpartition(":")[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= _DIGITS else None


def _is_aside(headers: Headers) -> bool:
    """Only the kind of the request is read: the metadata have paths and the installation's id, too."""
    try:
        metadata = json.loads(headers.get(_METADATA, "{}"))
    except (ValueError, RecursionError):
        return False
    return isinstance(metadata, dict) and metadata.get("request_kind") in _ASIDE


def _llm_text(access: Access) -> str:
    """Lines before all tables, and a table."""
    key = f'env_key = "{KEY_VARIABLE}"\n' if access.keyed else ""
    context = ""
    if access.context_tokens is not None and access.answer_tokens is not None:
        context = (
            f"model_context_window = {access.context_tokens}\n"
            f"model_auto_compact_token_limit = {access.context_tokens - access.answer_tokens}\n"
        )
    return (
        f'model = "{access.model}"\nmodel_provider = "cwm"\n{context}\n'
        f'[model_providers.cwm]\nname = "CWM"\nbase_url = "{access.url}/v1"\nwire_api = "responses"\n{key}'
    )


def _mcp_text(access: Access) -> str:
    key = f'bearer_token_env_var = "{KEY_VARIABLE}"\n' if access.keyed else ""
    return f'[mcp_servers.cwm]\nurl = "{access.url}/mcp"\n{key}'


def _llm(access: Access) -> list[Part]:
    return [Part(f"in ~/.codex/{_FILE}", _llm_text(access).rstrip())]


def _mcp(access: Access) -> list[Part]:
    return [Part(f"in ~/.codex/{_FILE}", _mcp_text(access).rstrip())]


CODEX: Final = Client(
    "codex",
    "Codex",
    Protocol.RESPONSES,
    _llm,
    _mcp,
    files=(OwnFile(_FILE, (_llm_text, _mcp_text), ".codex", "CODEX_HOME"),),
    headers=(_SESSION, _THREAD, _PARENT, _WINDOW, _METADATA),
    conversation=_conversation,
    conversation_meta=("threadId", "sessionId"),
    tool_name="mcp__cwm__{}",
    user_agents=("codex_", "codex-"),
    resume="codex resume --last",
)
