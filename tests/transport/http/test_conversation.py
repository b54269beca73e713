"""Which conversation a request's headers name, for every client that is known."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path

import pytest

from cwm.domain.clients.client import Client
from cwm.domain.clients.known import CLIENTS
from cwm.domain.conversation import ClientConversation
from cwm.transport.http.conversation import conversation_of

TURNS = (Path(__file__).parents[3] / "docs" / "turns.md").read_text().lower()
NAMING = [client for client in CLIENTS if client.headers]


class Read(UserDict[str, str]):
    """Headers that keep which of them were looked at."""

    def __init__(self, *names: str) -> None:
        super().__init__(dict.fromkeys(names, "one"))
        self.names: set[str] = set()

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.names.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("client", NAMING, ids=lambda client: client.name)
def test_each_header_of_a_client_is_read_and_named_in_the_documentation(client: Client) -> None:
    read = set()
    for names in (client.headers, *((name,) for name in client.headers)):
        headers = Read(*names)
        conversation_of(headers)
        read |= headers.names
    assert set(client.headers) <= read
    assert [name for name in client.headers if f"`{name}`" not in TURNS] == []


@pytest.mark.parametrize("client", NAMING, ids=lambda client: client.name)
def test_a_client_that_sends_headers_names_its_conversation(client: Client) -> None:
    conversation = conversation_of({client.headers[0]: "one"})
    assert conversation == ClientConversation("one")


@pytest.mark.parametrize("chat", ["local:socket", "channel:room", ""])
def test_an_id_that_many_chats_of_open_webui_share_names_none(chat: str) -> None:
    assert conversation_of({"x-openwebui-chat-id": chat}) is None


@pytest.mark.parametrize(("task", "is_aside"), [("title_generation", True), ("", False)])
def test_a_task_of_open_webui_is_aside(task: str, is_aside: bool) -> None:
    named = conversation_of({"x-openwebui-chat-id": "one", "x-openwebui-task": task})
    assert named == ClientConversation("one", aside=is_aside)


def test_the_headers_of_the_configuration_come_before_common_ones_and_behind_those_of_a_client() -> None:
    headers = {"x-own": "own", "x-conversation-id": "common"}
    assert conversation_of(headers, ("x-own",)) == ClientConversation("own")
    assert conversation_of({**headers, "thread-id": "codex"}, ("x-own",)) == ClientConversation("codex")
    assert conversation_of({"user-agent": "anything"}, ("x-own",)) is None
