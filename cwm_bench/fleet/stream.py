"""Reads streamed answers as a client does, whole or broken."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import httpx2

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(slots=True)
class StreamedAnswer:
    """One streamed answer. ``first_ms``: time to the first token. ``fault``: why the stream failed."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    """The ids in its events; a sound stream has one."""
    model: str = ""
    reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_ms: float = 0.0
    whole_ms: float = 0.0
    ended: bool = False
    fault: str = ""

    @property
    def is_whole(self) -> bool:
        return self.ended and not self.fault and len(self.names) == 1

    def equals(self, other: StreamedAnswer) -> bool:
        """Whether both have the same tokens, text, tool calls and finish reason."""
        return (self.ids, self.text, self.calls, self.reason) == (
            other.ids,
            other.text,
            other.calls,
            other.reason,
        )

    def sound(self) -> StreamedAnswer:
        """Return this answer. Raises RuntimeError unless it is whole."""
        if not self.is_whole:
            raise RuntimeError(f"a stream broke off: {self.fault or 'without its end'}")
        return self

    def take(self, line: str) -> None:
        """Add a line of the stream."""
        if line == "data: [DONE]":
            self.ended = True
        elif line.startswith("data: {"):
            self._take(json.loads(line.removeprefix("data: ")))

    def _take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            self.fault = str(event["error"])[:300]
            return
        self.names.add(event["id"])
        self.model = event["model"]
        if usage := event.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in event["choices"]:
            delta = choice.get("delta") or {"content": choice.get("text")}
            self.text += delta.get("content") or ""
            self.ids += choice.get("token_ids") or []
            self.reason = choice.get("finish_reason") or self.reason
            for piece in delta.get("tool_calls") or ():
                self._take_call(piece)

    def _take_call(self, piece: Mapping[str, Any]) -> None:
        call = self.calls.setdefault(piece["index"], {"name": "", "arguments": ""})
        for name in call:
            call[name] += (piece.get("function") or {}).get(name) or ""


async def stream(
    http: httpx2.AsyncClient,
    url: str,
    path: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] = _NONE,
    *,
    on_tokens: Callable[[int], None] = lambda _: None,
) -> StreamedAnswer:
    """Send ``body`` as a greedy request with token ids. ``on_tokens`` gets the number of tokens so far. Errors become the ``fault``."""
    request = {
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
        **body,
    }
    answer = StreamedAnswer()
    started = time.perf_counter()
    try:
        async with http.stream("POST", f"{url}{path}", json=request, headers=dict(headers)) as response:
            if response.status_code != httpx2.codes.OK:
                await response.aread()
                answer.fault = f"status {response.status_code}: {response.text[:300]}"
                return answer
            async for line in response.aiter_lines():
                before = len(answer.ids)
                answer.take(line)
                if len(answer.ids) > before:
                    answer.first_ms = answer.first_ms or (time.perf_counter() - started) * 1000
                    on_tokens(len(answer.ids))
    except httpx2.TransportError as error:
        answer.fault = repr(error)
    answer.whole_ms = (time.perf_counter() - started) * 1000
    return answer
