"""Spans of requests to vLLM, by OpenTelemetry's conventions for HTTP clients and for generative models.

They contain counts and names only: no prompt, no answer and no key.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

import httpx2

from cwm.ports.engine import Completion, Delta, Generation
from cwm.ports.tracing import NO_SPAN, Span, Tracer, named

_PROPAGATED: Final = frozenset({b"traceparent", b"tracestate"})
_COMPLETIONS: Final = "/v1/completions"


class Spans:
    """Starts spans for requests to one vLLM."""

    def __init__(self, tracer: Tracer, url: str) -> None:
        self._tracer = tracer
        parsed = httpx2.URL(url)
        self._peer: dict[str, str | int] = {
            "service.peer.name": "vllm",
            "server.address": parsed.host,
            "server.port": parsed.port or (443 if parsed.scheme == "https" else 80),
        }

    def http(self, method: str, path: str) -> AbstractContextManager[Span]:
        """A span for one HTTP request; without the query, whose text is the caller's."""
        bare = path.partition("?")[0]
        return self._tracer.call(f"{method} {bare}", self._attributes(method, bare))

    def generation(self, generation: Generation, *, stream: bool) -> AbstractContextManager[Span]:
        model = named(generation.model)
        attributes: dict[str, Any] = {
            **self._attributes("POST", _COMPLETIONS),
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.max_tokens": generation.max_tokens,
            "gen_ai.request.stream": stream,
        }
        if model is not None:
            attributes["gen_ai.request.model"] = model
        return self._tracer.call(f"text_completion {model}" if model else "text_completion", attributes)

    def onward(self, headers: list[tuple[bytes, bytes]], span: Span) -> list[tuple[bytes, bytes]]:
        """The headers for vLLM, with this span as the parent of vLLM's spans in place of the caller's span."""
        if not (carrier := span.carrier):
            return headers
        other_headers = [(name, value) for name, value in headers if name.lower() not in _PROPAGATED]
        return [*other_headers, *((name.encode(), value.encode()) for name, value in carrier.items())]

    def _attributes(self, method: str, path: str) -> dict[str, str | int]:
        if not self._tracer.on:
            return {}
        return {**self._peer, "http.request.method": method, "url.path": path}


def note_generation(span: Span, result: Completion | Delta) -> None:
    """Record finish reason and token counts once the engine has reported them."""
    if span is NO_SPAN or (result.finish_reason is None and result.prompt_tokens is None):
        return
    attributes: dict[str, Any] = {}
    if result.finish_reason is not None:
        attributes["gen_ai.response.finish_reasons"] = [result.finish_reason]
    if result.prompt_tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = result.prompt_tokens
    if result.cached_tokens is not None:
        attributes["gen_ai.usage.cache_read.input_tokens"] = result.cached_tokens
    if isinstance(result, Completion):
        attributes["gen_ai.usage.output_tokens"] = len(result.token_ids)
    span.note(attributes)
