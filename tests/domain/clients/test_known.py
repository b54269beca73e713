"""The list of clients: each is told apart, its file is in the list, and what is known of it is true of it alone."""

from __future__ import annotations

import importlib
import json
import pkgutil
import tomllib
from typing import Any

import pytest

from cwm.domain import clients
from cwm.domain.clients.client import Access, Client
from cwm.domain.clients.known import CLIENTS, asks_aside, bare_tool_name
from cwm.domain.messages import message_of

GATEWAY = "http://gateway:8700"
CONTEXT = 98_304
BY_NAME = {client.name: client for client in CLIENTS}
FREE = Access(GATEWAY, "a-model")
KEYED = Access(GATEWAY, "a-model", keyed=True, context_tokens=CONTEXT)


def said(role: str, text: str) -> Any:
    return [message_of({"role": role, "content": text})]


def texts(client: Client, access: Access) -> str:
    return "\n".join(part.text for parts in (client.llm, client.mcp) if parts for part in parts(access))


def test_no_two_clients_have_the_same_name_or_title() -> None:
    assert len(BY_NAME) == len({client.title for client in CLIENTS}) == len(CLIENTS)


def test_every_client_of_the_room_is_in_the_list() -> None:
    modules = [
        importlib.import_module(f"{clients.__name__}.{each.name}")
        for each in pkgutil.iter_modules(clients.__path__)
    ]
    defined = {each.name for module in modules for each in vars(module).values() if isinstance(each, Client)}
    assert defined == BY_NAME.keys()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_can_be_connected_and_speaks_a_protocol_if_its_model_can_be(client: Client) -> None:
    assert client.llm or client.mcp
    assert (client.llm is None) == (client.protocol is None)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_key_is_never_missing_where_the_gateway_asks_for_one(client: Client) -> None:
    assert "CWM_API_KEY" not in texts(client, FREE)
    if client.name != "claude-desktop":
        assert "CWM_API_KEY" in texts(client, KEYED)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("access", [FREE, KEYED], ids=["free", "keyed"])
def test_what_is_written_for_a_client_is_what_its_file_can_hold(client: Client, access: Access) -> None:
    for file in client.files:
        for text in file.texts:
            content = tomllib.loads(text(access)) if file.path.endswith(".toml") else json.loads(text(access))
            assert content


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("claude-code", f"CLAUDE_CODE_MAX_CONTEXT_TOKENS={CONTEXT}"),
        ("codex", f"model_context_window = {CONTEXT}\nmodel_auto_compact_token_limit = {CONTEXT // 4 * 3}"),
        ("opencode", f'"context": {CONTEXT}'),
        ("qwen-code", f'"contextWindowSize": {CONTEXT}'),
        ("continue", f"contextLength: {CONTEXT}"),
        ("aider", f'"max_input_tokens": {CONTEXT}'),
        ("cline", f'"contextWindow": {CONTEXT}'),
        ("pi", f'"contextWindow": {CONTEXT}'),
        ("mini-swe-agent", f'"max_input_tokens": {CONTEXT}'),
        ("librechat", f"context: {CONTEXT}"),
        ("lobechat", f"<{CONTEXT}:fc>"),
        ("anythingllm", f"GENERIC_OPEN_AI_MODEL_TOKEN_LIMIT={CONTEXT}"),
    ],
)
def test_a_client_with_a_setting_for_it_is_given_the_length_of_the_context(name: str, setting: str) -> None:
    assert setting in texts(BY_NAME[name], KEYED)
    assert str(CONTEXT) not in texts(BY_NAME[name], FREE)


def test_at_most_32000_tokens_of_a_long_context_are_for_an_answer() -> None:
    assert Access(GATEWAY, "a-model", context_tokens=1_000_000).answer_tokens == 32_000


@pytest.mark.parametrize("words", [words for client in CLIENTS for words in client.aside_words])
def test_a_message_in_a_clients_own_words_is_aside_and_one_with_some_of_them_is_not(
    words: tuple[str, ...],
) -> None:
    assert asks_aside(said("user", " ".join(words)))
    assert not asks_aside(said("assistant", " ".join(words)))
    assert not asks_aside(said("user", " ".join(words[1:])))
    assert not asks_aside([])


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_tools_own_name_is_found_in_what_a_client_calls_it(client: Client) -> None:
    assert bare_tool_name(client.tool_name.format("window_freeze")) == "window_freeze"


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("claude-cli/2.1.197 (external, sdk-cli)", "claude-code"),
        ("codex_exec/0.169.0", "codex"),
        ("opencode/1.18.33 ai-sdk/provider-utils/4.0.23", "opencode"),
        ("QwenCode/0.15.10 (linux; x64)", "qwen-code"),
        ("Continue-CLI/1.5.47", "continue"),
        ("pi/1.6.0 (linux; node/v24.19.0; x64)", "pi"),
        ("OpenAI/Python 2.20.0", None),
        ("", None),
    ],
)
def test_a_user_agent_is_of_one_client(user_agent: str, name: str | None) -> None:
    assert [client.name for client in CLIENTS if client.is_behind(user_agent)] == (
        [] if name is None else [name]
    )
