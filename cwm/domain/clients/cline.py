"""Cline, on the command line. It names no conversation, and its `User-Agent` is that of the AI SDK."""

from __future__ import annotations

from typing import Any, Final

from cwm.domain.clients.client import Access, Client, Part, Protocol, json_text

_PROVIDER: Final = "openai-compatible"
_FILE: Final = "~/.cline/data/settings/providers.json"


def _llm(access: Access) -> list[Part]:
    line = (
        f'cline auth --provider {_PROVIDER} --apikey "{access.key}" --modelid {access.model} '
        f"--baseurl {access.url}/v1"
    )
    parts = [Part("once, in a shell", line)]
    if access.context_tokens is not None:
        settings: dict[str, Any] = {
            "contextWindow": access.context_tokens,
            "maxTokens": access.answer_tokens,
        }
        note = f"in {_FILE}, beside what that wrote there"
        parts.append(Part(note, json_text({"providers": {_PROVIDER: {"settings": settings}}})))
    return parts


def _mcp(access: Access) -> list[Part]:
    header = f' --header "Authorization: Bearer {access.key}"' if access.keyed else ""
    return [
        Part("once, in a shell", f"cline mcp add cwm --transport http{header} --yes {access.url}/mcp"),
    ]


CLINE: Final = Client("cline", "Cline", Protocol.CHAT, _llm, _mcp)
