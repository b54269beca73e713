"""Qwen Code. It names no conversation: its configuration can only set headers that all of them share."""

from __future__ import annotations

from typing import Final

from cwm.domain.clients.client import KEY_VARIABLE, Access, Client, Part, Protocol, json_text, servers_text

_FILE: Final = "in ~/.qwen/settings.json"


def _llm(access: Access) -> list[Part]:
    lines = (
        f'export OPENAI_BASE_URL={access.url}/v1 OPENAI_API_KEY="{access.key}" OPENAI_MODEL={access.model}'
    )
    parts = [Part("in the shell that starts qwen", lines)]
    if access.context_tokens is not None:
        provider = {
            "id": access.model,
            "name": "CWM",
            "baseUrl": f"{access.url}/v1",
            "envKey": "OPENAI_API_KEY",
            "generationConfig": {"contextWindowSize": access.context_tokens},
        }
        parts.append(Part(_FILE, json_text({"modelProviders": {"openai": [provider]}})))
    return parts


def _mcp(access: Access) -> list[Part]:
    address = {"httpUrl": f"{access.url}/mcp"}
    return [Part(_FILE, servers_text(access, "mcpServers", address, f"${{{KEY_VARIABLE}}}"))]


QWEN_CODE: Final = Client(
    "qwen-code",
    "Qwen Code",
    Protocol.CHAT,
    _llm,
    _mcp,
    tool_name="mcp__cwm__{}",
    preface="This is the Qwen Code. We are setting up the context for our chat.",
    user_agents=("qwencode/", "qwen"),
)
