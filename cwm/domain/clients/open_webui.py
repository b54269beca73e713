"""Open WebUI. It sends the id of the chat where ENABLE_FORWARD_USER_INFO_HEADERS is set, or where its connection has the headers below.

Requests for titles, tags, follow-ups and the like have the id of the chat, too. Only the headers of a connection say which they are, and
only from 0.10 on; else its own words do.
"""

from __future__ import annotations

import json
from typing import Final

from cwm.domain.clients.client import Access, Client, Headers, Part, Protocol
from cwm.domain.conversation import ClientConversation

_CHAT: Final = "x-openwebui-chat-id"
_TASK: Final = "x-openwebui-task"
# Many temporary chats have the id of one browser's connection, many threads that of one channel.
_SHARED: Final = ("local:", "channel:")
_CONFIGURED: Final = {"X-OpenWebUI-Chat-Id": "{{CHAT_ID}}", "X-OpenWebUI-Task": "{{TASK}}"}


def _conversation(headers: Headers) -> ClientConversation | None:
    chat = headers.get(_CHAT, "")
    if not chat or chat.startswith(_SHARED):
        return None
    return ClientConversation(chat, aside=bool(headers.get(_TASK)))


def _llm(access: Access) -> list[Part]:
    text = f"URL: {access.url}/v1\nKey: {access.pasted_key}\nHeaders: {json.dumps(_CONFIGURED)}"
    return [Part("in Admin Panel > Settings > Connections, as an OpenAI API connection", text)]


def _mcp(access: Access) -> list[Part]:
    key = f"\nBearer: {access.pasted_key}" if access.keyed else ""
    text = f"ID: cwm\nURL: {access.url}/mcp{key}"
    return [Part("in Admin Panel > Settings > External Tools, of the type MCP (Streamable HTTP)", text)]


OPEN_WEBUI: Final = Client(
    "open-webui",
    "Open WebUI",
    Protocol.CHAT,
    _llm,
    _mcp,
    headers=(_CHAT, _TASK),
    conversation=_conversation,
    tool_name="cwm_{}",
    aside_words=(("### Task:", "<chat_history>", "</chat_history>"),),
)
