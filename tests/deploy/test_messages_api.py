"""The middleware that does what vLLM's Messages API leaves undone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.deploy.modules import messages_api


class Serving:
    """vLLM's handler: its chat ends every message, and begins another one."""

    def __init__(self) -> None:
        self.converted = 0

    def to_chat_completion_request(self, request: Any, *, merge_inline_system: bool = False) -> Any:
        self.converted += 1
        return SimpleNamespace(
            messages=request.messages,
            merged=merge_inline_system,
            continue_final_message=False,
            add_generation_prompt=True,
            thinking_token_budget=2048,
        )


async def chat_of(
    messages: list[dict[str, Any]], *, path: str = "/v1/messages", times: int = 1, reasoning: Any = None
) -> Any:
    serving = Serving()
    client = SimpleNamespace(vllm_config=SimpleNamespace(reasoning_config=reasoning))
    app = SimpleNamespace(state=SimpleNamespace(anthropic_serving_messages=serving, engine_client=client))
    chats: list[Any] = []

    async def server(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        handler = scope["app"].state.anthropic_serving_messages
        chats.append(
            handler.to_chat_completion_request(SimpleNamespace(messages=messages), merge_inline_system=True)
        )

    middleware = messages_api.MessagesApi(server)
    for _ in range(times):
        await middleware({"type": "http", "path": path, "app": app}, None, None)
    assert serving.converted == times
    return chats[-1]


USER: dict[str, Any] = {"role": "user", "content": "Reply in JSON."}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_a_last_message_of_the_assistant_is_gone_on_with(path: str) -> None:
    chat = await chat_of([USER, {"role": "assistant", "content": "{"}], path=path, times=3)
    assert (chat.continue_final_message, chat.add_generation_prompt, chat.merged) == (True, False, True)


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [USER, {"role": "assistant", "content": "{}"}, USER],
        [USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}],
        [],
    ],
)
async def test_any_other_last_message_is_ended(messages: list[dict[str, Any]]) -> None:
    chat = await chat_of(messages)
    assert (chat.continue_final_message, chat.add_generation_prompt) == (False, True)


async def test_a_budget_for_thoughts_is_for_an_engine_that_reads_them() -> None:
    assert (await chat_of([USER])).thinking_token_budget is None
    assert (await chat_of([USER], reasoning=SimpleNamespace(enabled=True))).thinking_token_budget == 2048


async def test_a_server_without_the_messages_api_serves_as_before() -> None:
    served: list[str] = []

    async def server(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        served.append(scope["type"])

    middleware = messages_api.MessagesApi(server)
    await middleware({"type": "lifespan"}, None, None)
    app = SimpleNamespace(state=SimpleNamespace())
    await middleware({"type": "http", "path": "/v1/messages", "app": app}, None, None)
    assert served == ["lifespan", "http"]
