"""Continue, whose command is ``cn``. It names no conversation, and gives tools their own names."""

from __future__ import annotations

from typing import Final

from cwm.domain.clients.claude_code import GIT_STATUS
from cwm.domain.clients.client import KEY_VARIABLE, Access, Client, Part, Protocol

_FILE: Final = "in ~/.continue/config.yaml"
_VARIABLE: Final = f"${{{{ secrets.{KEY_VARIABLE} }}}}"


def _llm(access: Access) -> list[Part]:
    context = ""
    if access.context_tokens is not None:
        context = (
            f"\n    defaultCompletionOptions:\n      contextLength: {access.context_tokens}"
            f"\n      maxTokens: {access.answer_tokens}"
        )
    # The first three are required; without the capability it gives a model that it does not know no tools.
    text = (
        f"name: CWM\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: CWM\n    provider: openai\n    model: {access.model}\n"
        f"    apiBase: {access.url}/v1\n    apiKey: {_VARIABLE if access.keyed else 'none'}\n"
        f"    roles: [chat, edit, apply]\n    capabilities: [tool_use]{context}"
    )
    return [Part(_FILE, text)]


def _mcp(access: Access) -> list[Part]:
    headers = (
        f"\n    requestOptions: {{headers: {{Authorization: Bearer {_VARIABLE}}}}}" if access.keyed else ""
    )
    text = f"mcpServers:\n  - name: cwm\n    type: streamable-http\n    url: {access.url}/mcp{headers}"
    return [Part(_FILE, text)]


CONTINUE: Final = Client(
    "continue",
    "Continue",
    Protocol.CHAT,
    _llm,
    _mcp,
    # In the words of Claude Code, within a tag of its own.
    blocks=(GIT_STATUS,),
    user_agents=("continue/", "continue-cli/"),
)
