"""The conversation with a model that an agent is in while it calls a tool, as far as its client says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cwm.domain.conversation import ClientConversation

# Codex sends its own ids in ``_meta``, Claude Code the id that the model gave the call.
_THREAD: Final = "threadId"
_SESSION: Final = "sessionId"
_CALL: Final = "claudecode/toolUseId"


def conversation_in(meta: Mapping[str, Any]) -> ClientConversation | None:
    ids = [value for name in (_THREAD, _SESSION) if isinstance(value := meta.get(name), str) and value]
    return ClientConversation(ids[0]) if ids else None


def call_in(meta: Mapping[str, Any]) -> str | None:
    """The id of the tool call in the model's answer."""
    value = meta.get(_CALL)
    return value if isinstance(value, str) else None
