"""LibreChat. It sends no id by itself; its configuration can put the conversation's into a header, as its documentation shows."""

from __future__ import annotations

from typing import Final

from cwm.domain.clients.client import KEY_VARIABLE, Access, Client, Part, Protocol

_FILE: Final = "in librechat.yaml"
_VARIABLE: Final = f"${{{KEY_VARIABLE}}}"


def _llm(access: Access) -> list[Part]:
    context = ""
    if access.context_tokens is not None:
        context = (
            "\n      tokenConfig:\n"
            f"        '{access.model}': {{prompt: 0, completion: 0, context: {access.context_tokens}}}"
        )
    text = (
        f"endpoints:\n  custom:\n    - name: CWM\n      apiKey: '{_VARIABLE if access.keyed else 'none'}'\n"
        f"      baseURL: {access.url}/v1\n      models: {{default: ['{access.model}'], fetch: true}}\n"
        f"      headers:\n        X-Conversation-Id: '{{{{LIBRECHAT_BODY_CONVERSATIONID}}}}'{context}"
    )
    return [Part(_FILE, text)]


def _mcp(access: Access) -> list[Part]:
    headers = f"\n    headers: {{Authorization: 'Bearer {_VARIABLE}'}}" if access.keyed else ""
    text = f"mcpServers:\n  cwm:\n    type: streamable-http\n    url: {access.url}/mcp{headers}"
    return [Part(_FILE, text)]


LIBRECHAT: Final = Client(
    "librechat",
    "LibreChat",
    Protocol.CHAT,
    _llm,
    _mcp,
    headers=("x-conversation-id",),
    tool_name="{}_mcp_cwm",
    aside_words=(
        ("Provide a concise, 5-word-or-less title for the conversation", "Only return the title itself"),
    ),
)
