"""Chats over ``/v1/chat/completions``, as an OpenAI client sends them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cwm_bench.harness.agent import Agent

Messages = Sequence[dict[str, str]]


@dataclass(slots=True)
class ChatAnswer:
    """A streamed answer and the turn that it became; ``first_ms`` until its first token, ``whole_ms`` until its end."""

    turn: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    first_ms: float = 0.0
    whole_ms: float = 0.0


async def chat(
    agent: Agent, messages: Messages, max_tokens: int, *, ignore_eos: bool = False, **headers: str
) -> ChatAnswer:
    """The greedy answer to ``messages``. ``headers`` are spelled with ``_`` for ``-``."""
    body = {
        "model": agent.model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": ignore_eos,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    started = time.perf_counter()
    async with agent.http.stream(
        "POST", f"{agent.url}/v1/chat/completions", json=body, headers=http_headers
    ) as response:
        response.raise_for_status()
        answer = ChatAnswer(response.headers["CWM-Turn"])
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                _take(answer, json.loads(line.removeprefix("data: ")), started)
    answer.whole_ms = (time.perf_counter() - started) * 1000
    return answer


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _take(answer: ChatAnswer, event: dict[str, Any], started: float) -> None:
    answer.prompt_ids = event.get("prompt_token_ids") or answer.prompt_ids
    for choice in event["choices"]:
        answer.text += choice["delta"].get("content") or ""
        answer.token_ids += choice.get("token_ids") or []
    if answer.token_ids and not answer.first_ms:
        answer.first_ms = (time.perf_counter() - started) * 1000
