"""The protocols of agents as plain HTTP: one request in the words of each, its refusals, and what the engine itself computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

import httpx2

from tests.live.engine import LiveEngine
from tests.live.talk import Talk

TOOL_NAME: Final = "open_door"
_PARAMETERS: Final = {
    "type": "object",
    "properties": {"code": {"type": "string", "enum": ["4711"]}},
    "required": ["code"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Question:
    """``tool``: one is offered and has to be called. ``endless``: the answer goes on to its limit where that can be asked for."""

    messages: Sequence[Mapping[str, Any]]
    max_tokens: int = 24
    stop: tuple[str, ...] = ()
    tool: bool = False
    stream: bool = False
    endless: bool = False


@dataclass(frozen=True, slots=True)
class Protocol:
    """``messages``, ``limit`` and ``stop`` are its names of fields; ``said``: what its event of a piece of text has in it."""

    name: str
    path: str
    messages: str
    limit: str
    stop: str
    forced: Any
    tool: Mapping[str, Any]
    said: str
    error_keys: frozenset[str] = field(default=frozenset({"error"}))

    def body(self, model: str, question: Question) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            self.messages: [*question.messages],
            self.limit: question.max_tokens,
            "temperature": 0,
            "stream": question.stream,
        }
        if question.endless and self is not MESSAGES:
            # Anthropic's API has no such field.
            body["ignore_eos"] = True
        if question.stop:
            body[self.stop] = [*question.stop]
        if question.tool:
            body |= {"tools": [self.tool], "tool_choice": self.forced}
        return body


CHAT: Final = Protocol(
    "chat",
    "/v1/chat/completions",
    "messages",
    "max_tokens",
    "stop",
    "required",
    {"type": "function", "function": {"name": TOOL_NAME, "strict": True, "parameters": _PARAMETERS}},
    '"content":"',
)
MESSAGES: Final = Protocol(
    "messages",
    "/v1/messages",
    "messages",
    "max_tokens",
    "stop_sequences",
    {"type": "any"},
    {"name": TOOL_NAME, "strict": True, "input_schema": _PARAMETERS},
    '"text_delta"',
    frozenset({"type", "error"}),
)
RESPONSES: Final = Protocol(
    "responses",
    "/v1/responses",
    "input",
    "max_output_tokens",
    "stop",
    "required",
    {"type": "function", "name": TOOL_NAME, "strict": True, "parameters": _PARAMETERS},
    "response.output_text.delta",
)
PROTOCOLS: Final = (CHAT, MESSAGES, RESPONSES)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def require_refused(protocol: Protocol, answer: httpx2.Response, what: str) -> None:
    """A refusal of a client, in the shape of the protocol."""
    assert 400 <= answer.status_code < 500, (what, answer.status_code, answer.text[:500])
    body = answer.json()
    assert protocol.error_keys <= body.keys(), (what, body)
    error = body["error"]
    assert error["type"], (what, body)
    assert error["message"], (what, body)


async def recorded(agent: Talk, **of: str) -> tuple[list[int], list[int]]:
    """The ids of the prompt and of the answer of a turn, or of a session's last one."""
    shown = await agent.tool("turn_show", include_tokens=True, **of)
    at = shown["turn"]["prompt_tokens"]
    return shown["token_ids"][:at], shown["token_ids"][at:]


async def computed(engine: LiveEngine, prompt: Sequence[int], question: Question) -> list[int]:
    """The ids of the engine's own answer to ``prompt``, with nothing stored."""
    body = CHAT.body(engine.model_name, replace(question, stream=False))
    body |= {
        "cache_salt": uuid4().hex,
        "kv_transfer_params": {"prompt_token_ids": [*prompt]},
        "return_token_ids": True,
    }
    async with httpx2.AsyncClient(base_url=engine.vllm_url, timeout=300, trust_env=False) as http:
        answer = (await http.post(CHAT.path, json=body)).raise_for_status().json()
    assert answer["prompt_token_ids"] == [*prompt]
    return list(answer["choices"][0]["token_ids"])


async def rendered(engine: LiveEngine, protocol: Protocol, question: Question) -> list[int]:
    """The ids of the prompt that the engine makes of a question."""
    async with httpx2.AsyncClient(base_url=engine.vllm_url, timeout=300, trust_env=False) as http:
        answer = await http.post(f"{protocol.path}/render", json=protocol.body(engine.model_name, question))
    told = answer.raise_for_status().json()
    return list(told["token_ids"] if "token_ids" in told else told[0]["token_ids"])
