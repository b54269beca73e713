"""LobeChat (LobeHub). It sends no id of a topic and has no setting for headers, so what was said decides."""

from __future__ import annotations

from typing import Final

from cwm.domain.clients.client import Access, Client, Part, Protocol, servers_text


def _llm(access: Access) -> list[Part]:
    size = "" if access.context_tokens is None else f"={access.model}<{access.context_tokens}:fc>"
    text = (
        f'OPENAI_PROXY_URL={access.url}/v1\nOPENAI_API_KEY="{access.pasted_key}"\n'
        f'OPENAI_MODEL_LIST="-all,+{access.model}{size}"'
    )
    return [Part("in the environment of its server", text)]


def _mcp(access: Access) -> list[Part]:
    address = {"url": f"{access.url}/mcp"}
    return [
        Part(
            "as a custom MCP plugin, by JSON", servers_text(access, "mcpServers", address, access.pasted_key)
        )
    ]


LOBECHAT: Final = Client("lobechat", "LobeChat", Protocol.CHAT, _llm, _mcp)
