"""What an answer of Anthropic's Messages API says, and refusals of vLLM in that API's words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from cwm.adapters.vllm.turns.body import objects
from cwm.adapters.vllm.turns.messages.chat import chat_message
from cwm.adapters.vllm.turns.openai.tokens import prompt_usage
from cwm.adapters.vllm.turns.refusals import Refused, validation_in_words
from cwm.domain.figures import is_odd, token_count
from cwm.ports.turn_wire import PromptUsage

_DELTAS: Final = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("input", "partial_json"),
}
_PROMPT: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_USAGE: Final = frozenset({*_PROMPT, "output_tokens"})
_TYPES: Final = {
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# vLLM stops counting behind the first token too many, or counts characters.
_TOO_LONG: Final = re.compile(
    r"maximum context length is (\d{1,18}) tokens.{0,400}?(?<!\d)(\d{1,18}) input tokens", re.DOTALL
)
_SEARCHED_CHARS: Final = 16 * 1024
_QUOTED_CHARS: Final = 300


class MessageReader:
    """A :class:`cwm.adapters.vllm.turns.engine_ids.AnswerReader` of messages: their events and bodies stay as they are."""

    def __init__(self) -> None:
        self.aborted = False
        self.begun = False
        self.ended = False
        self.failed = False
        self._has_start = False
        self._blocks: dict[Any, dict[str, Any]] = {}
        self._pieces: dict[tuple[Any, str], list[str]] = {}
        self._usage: dict[str, int] = {}
        self.odd = False

    def take(self, event: dict[str, Any]) -> None:
        kind, index = event.get("type"), event.get("index")
        message = event.get("message") if kind == "message_start" else event
        if kind in {"message", "message_start"} and isinstance(message, dict):
            self._has_start = True
            self._blocks = dict(enumerate(objects(message.get("content"))))
            self.aborted = kind == "message" and message.get("stop_reason", "") is None
            self._count(message)
        elif kind == "content_block_start" and isinstance(block := event.get("content_block"), dict):
            self._blocks[index] = block
        elif kind == "content_block_delta" and isinstance(delta := event.get("delta"), dict):
            field, name = _DELTAS.get(str(delta.get("type")), ("", ""))
            if isinstance(piece := delta.get(name), str):
                self._pieces.setdefault((index, field), []).append(piece)
                self.begun = self.begun or bool(piece)
        elif kind == "message_delta":
            delta = event.get("delta")
            self.aborted = isinstance(delta, dict) and delta.get("stop_reason", "") is None
            self._count(event)
        elif kind == "message_stop":
            self.ended = True
        elif kind == "error":
            self.failed = True

    def message(self) -> Mapping[str, Any] | None:
        if not self._has_start:
            return None
        blocks = [self._whole(index, block) for index, block in self._blocks.items()]
        return {"content": "", **chat_message({"role": "assistant", "content": blocks})[-1]}

    def usage(self) -> PromptUsage | None:
        return prompt_usage(self._prompt_tokens(), self._usage.get("cache_read_input_tokens"))

    def total_tokens(self) -> int | None:
        prompt = self._prompt_tokens()
        return None if prompt is None else prompt + (self._usage.get("output_tokens") or 0)

    def _prompt_tokens(self) -> int | None:
        usage = self._usage
        if "input_tokens" not in usage:
            return None
        return sum(usage.get(name) or 0 for name in _PROMPT)

    def _count(self, holder: dict[str, Any]) -> None:
        usage = holder.get("usage")
        if isinstance(usage, dict):
            named = {name: value for name, value in usage.items() if name in _USAGE}
            self.odd = self.odd or any(map(is_odd, named.values()))
            counts = {name: token_count(value) for name, value in named.items()}
            self._usage = {name: value for name, value in counts.items() if value is not None}

    def _whole(self, index: Any, block: dict[str, Any]) -> dict[str, Any]:
        """A block with its deltas."""
        for field in ("text", "thinking"):
            if pieces := self._pieces.get((index, field)):
                block = {**block, field: "".join((str(block.get(field) or ""), *pieces))}
        if pieces := self._pieces.get((index, "input")):
            # As text: parsed, 1.10 would be 1.1.
            block = {**block, "input": "".join(pieces)}
        return block


class RefusalAnswer(Refused):
    """A refusal of the engine in Anthropic's words."""

    def __init__(self, status: int, model: str) -> None:
        super().__init__()
        self._status = status
        self._model = model

    def told(self, content: bytes) -> bytes:
        kind = _TYPES.get(self._status, "invalid_request_error" if self._status < 500 else "api_error")
        error = {"type": kind, "message": self._worded(_message_of(content))}
        return json.dumps({"type": "error", "error": error}, separators=(",", ":")).encode()

    def _worded(self, message: str) -> str:
        """What Anthropic's API says in such a case, if clients look for it."""
        if self._status == 404 and "model" in message:
            return f"model: {self._model}"
        if too_long := _TOO_LONG.search(message, 0, _SEARCHED_CHARS):
            most, tokens = int(too_long[1]), int(too_long[2])
            return f"prompt is too long: {max(tokens, most + 1)} tokens > {most} maximum"
        return validation_in_words(message)


def renaming(served_name: str, client_name: str) -> Callable[[bytes], bytes]:
    """Puts the model's name that the client used where the engine writes its own: last of all, behind what a tool is called with."""
    pattern = re.compile(
        rb'[{,]"model":' + re.escape(json.dumps(served_name, ensure_ascii=False).encode()) + rb"(?=[,}])"
    )
    name = json.dumps(client_name).encode()

    def named(content: bytes) -> bytes:
        start = content.rfind(b'"model":')
        match = pattern.match(content, start - 1) if start > 0 else None
        return content if match is None else content[: start + 8] + name + content[match.end() :]

    return named


def _message_of(content: bytes) -> str:
    """The message of a refusal in the shape of OpenAI, Anthropic or FastAPI."""
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    error = value.get("error", value.get("detail")) if isinstance(value, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    return str(error or content[:_QUOTED_CHARS].decode(errors="replace"))
