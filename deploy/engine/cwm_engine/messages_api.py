"""What vLLM's Messages API leaves undone: ``--middleware cwm_engine.messages_api.MessagesApi``.

Anthropic's API goes on with a last message of the assistant (prefill); vLLM 0.32 ends that message and begins another one, without a word.
It refuses a budget for thoughts where it reads none; clients set one for whatever model they have, so that it is left out there.
"""

from __future__ import annotations

from typing import Any

_PATH = "/v1/messages"
_CONVERT = "to_chat_completion_request"


class MessagesApi:
    """ASGI middleware of vLLM's server."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_PATH):
            state = scope["app"].state
            _prepare(getattr(state, "anthropic_serving_messages", None), _reads_thoughts(state))
        await self._app(scope, receive, send)


def _reads_thoughts(state: Any) -> bool:
    config = getattr(getattr(state, "engine_client", None), "vllm_config", None)
    return bool(getattr(getattr(config, "reasoning_config", None), "enabled", False))


def _prepare(serving: Any, reads_thoughts: bool) -> None:
    """Change how vLLM's handler makes a chat of a request; once."""
    if serving is None or _CONVERT in vars(serving):
        return
    convert = getattr(serving, _CONVERT)

    def converted(request: Any, **options: Any) -> Any:
        chat = convert(request, **options)
        last = chat.messages[-1] if chat.messages else {}
        if last.get("role") == "assistant" and not last.get("tool_calls"):
            chat.continue_final_message, chat.add_generation_prompt = True, False
        if not reads_thoughts:
            chat.thinking_token_budget = None
        return chat

    setattr(serving, _CONVERT, converted)
