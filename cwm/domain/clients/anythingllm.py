"""AnythingLLM. It sends no id of a thread, and its headers are fixed for all threads, so what was said decides."""

from __future__ import annotations

from typing import Final

from cwm.domain.clients.client import Access, Client, Part, Protocol, servers_text


def _llm(access: Access) -> list[Part]:
    lines = [
        "LLM_PROVIDER=generic-openai",
        f"GENERIC_OPEN_AI_BASE_PATH={access.url}/v1",
        f"GENERIC_OPEN_AI_MODEL_PREF={access.model}",
        f'GENERIC_OPEN_AI_API_KEY="{access.pasted_key}"',
    ]
    if access.context_tokens is not None:
        lines += [
            f"GENERIC_OPEN_AI_MODEL_TOKEN_LIMIT={access.context_tokens}",
            f"GENERIC_OPEN_AI_MAX_TOKENS={access.answer_tokens}",
        ]
    return [Part("in the environment of its server", "\n".join(lines))]


def _mcp(access: Access) -> list[Part]:
    address = {"type": "streamable", "url": f"{access.url}/mcp"}
    text = servers_text(access, "mcpServers", address, access.pasted_key)
    return [Part("in plugins/anythingllm_mcp_servers.json of its storage", text)]


ANYTHINGLLM: Final = Client("anythingllm", "AnythingLLM", Protocol.CHAT, _llm, _mcp)
