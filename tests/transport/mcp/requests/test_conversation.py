"""What clients say with a tool call of the conversation that it comes from."""

from __future__ import annotations

import pytest

from cwm.domain.clients.known import CLIENTS
from cwm.domain.conversation import ClientConversation
from cwm.transport.mcp.requests.conversation import call_in, conversation_in


@pytest.mark.parametrize("name", [name for client in CLIENTS for name in client.conversation_meta])
def test_each_key_of_a_client_names_its_conversation(name: str) -> None:
    assert conversation_in({name: "one"}) == ClientConversation("one")
    assert conversation_in({name: ["one"]}) is conversation_in({name: ""}) is conversation_in({}) is None


@pytest.mark.parametrize("name", [client.call_meta for client in CLIENTS if client.call_meta])
def test_each_key_of_a_client_names_the_call(name: str) -> None:
    assert call_in({name: "call_1"}) == "call_1"
    assert call_in({name: 1}) is call_in({}) is None
