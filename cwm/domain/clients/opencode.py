"""opencode. It asks for a title under the conversation's own id, with a system text of its own and without tools."""

from __future__ import annotations

from typing import Any, Final

from cwm.domain.clients.client import (
    KEY_VARIABLE,
    Access,
    Client,
    OwnFile,
    Part,
    Protocol,
    json_text,
    servers_text,
)

_FILE: Final = "opencode.json"
_VARIABLE: Final = f"{{env:{KEY_VARIABLE}}}"


def _llm_text(access: Access) -> str:
    model: dict[str, Any] = {}
    if access.context_tokens is not None:
        model["limit"] = {"context": access.context_tokens, "output": access.answer_tokens}
    return json_text(
        {
            "$schema": "https://opencode.ai/config.json",
            "model": f"cwm/{access.model}",
            "provider": {
                "cwm": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "CWM",
                    "options": {
                        "baseURL": f"{access.url}/v1",
                        "apiKey": _VARIABLE if access.keyed else "none",
                    },
                    "models": {access.model: model},
                }
            },
        }
    )


def _mcp_text(access: Access) -> str:
    address = {"type": "remote", "url": f"{access.url}/mcp", "enabled": True}
    return servers_text(access, "mcp", address, _VARIABLE)


OPENCODE: Final = Client(
    "opencode",
    "opencode",
    Protocol.CHAT,
    lambda access: [Part(f"in {_FILE}", _llm_text(access))],
    lambda access: [Part(f"in {_FILE}", _mcp_text(access))],
    files=(OwnFile(_FILE, (_llm_text, _mcp_text)),),
    headers=("x-session-id", "x-session-affinity", "x-parent-session-id"),
    tool_name="cwm_{}",
    user_agents=("opencode/",),
    resume="opencode --continue",
)
