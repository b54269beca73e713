"""vLLM over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import httpx2

from cwm.adapters.http.bounded import read_bounded
from cwm.adapters.http.sockets import on_asyncio
from cwm.adapters.http.trust import trusted
from cwm.adapters.vllm import wire
from cwm.adapters.vllm.faults import Freshness, coded_errors, was_stale
from cwm.adapters.vllm.media import MediaRule
from cwm.adapters.vllm.router import Router, decision_of
from cwm.adapters.vllm.spans import Spans, note_generation
from cwm.adapters.vllm.turns.events import Events, data_of
from cwm.adapters.vllm.wire import Tokenizer
from cwm.domain.errors import EngineConnectionError, EngineResponseError
from cwm.domain.look import numbered
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.ports.engine import (
    Completion,
    Counters,
    Delta,
    ForwardedResponse,
    Generation,
    LookAnswer,
    ServedModel,
    SessionName,
)
from cwm.ports.tracing import NO_SPAN, UNTRACED, Span, Tracer
from cwm.settings import Engine as EngineSettings
from cwm.settings.engines import EngineEntry
from cwm.threads import in_thread

# vLLM closes an idle connection after five seconds; closing it earlier avoids writing to a dead one.
_KEEPALIVE_SECONDS: Final = 4.0
_IDLE_CONNECTIONS: Final = 64
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_FORWARDED: Final = _HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"accept-encoding",
    b"authorization",
    b"expect",
}
# Of an answer no other header passes: cookies, redirects and rules for browsers would be an engine's word under the gateway's name.
_ANSWERED: Final = frozenset(
    {
        b"cache-control",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"request-id",
        b"retry-after",
        b"retry-after-ms",
        b"x-request-id",
        b"x-should-retry",
    }
)
_ANSWERED_PREFIXES: Final = (b"anthropic-", b"openai-", b"x-ratelimit-")
_JSON: Final = (b"content-type", b"application/json")
# Served with --enable-scale-out.
_COMPLETIONS: Final = "/v1/completions"
_DONE: Final = b"[DONE]"
# Of an answer to the gateway itself: a look at a long context has megabytes of log-probabilities.
_MOST_BYTES: Final = 256 * 1024 * 1024
_ABORT: Final = "/inference/v1/abort_requests"
_RENDER: Final = "/v1/chat/completions/render"
_DOCUMENT: Final = "/openapi.json"
_parsed = lru_cache(64)(httpx2.URL)


@dataclass(slots=True)
class _Forwarded:
    """A :class:`cwm.ports.engine.ForwardedResponse` whose body is read from vLLM as it is consumed."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    decision: str | None
    _body: AsyncIterable[bytes]
    _engine: VllmEngine

    async def chunks(self) -> AsyncIterator[bytes]:
        with self._engine.faults():
            async for chunk in self._body:
                yield chunk


class VllmEngine:
    """The port :class:`cwm.ports.engine.Engine` over one vLLM server.

    A GET and ``/tokenize`` are retried once after any broken connection; a generation only if a pooled
    connection was dead before the first byte of the response.
    """

    def __init__(
        self, settings: EngineSettings, tracer: Tracer = UNTRACED, media: MediaRule | None = None
    ) -> None:
        self.settings = settings
        self._media = media or MediaRule()
        self._url = settings.vllm_url
        self._origin = "the engine's url" if isinstance(settings, EngineEntry) else "CWM_VLLM_URL"
        self._spans = Spans(tracer, settings.vllm_url)
        self._timeout_seconds = settings.request_timeout_seconds
        self._headers = [(b"accept-encoding", b"identity")]
        if key := settings.vllm_api_key:
            self._headers.append((b"authorization", b"Bearer " + key.get_secret_value().encode()))
        self._router = Router() if settings.is_router else None
        self._tokenizers: dict[str, Tokenizer] = {}
        timeout = httpx2.Timeout(settings.request_timeout_seconds, connect=settings.connect_timeout_seconds)
        self._extensions = {"timeout": timeout.as_dict(), "sni_hostname": settings.server_name}
        # The transport without a client: CWM needs no redirects, cookies or default headers, and they cost time.
        self._transport = on_asyncio(
            httpx2.AsyncHTTPTransport(
                verify=settings.tls_context() or trusted(),
                limits=httpx2.Limits(
                    max_connections=None,
                    max_keepalive_connections=_IDLE_CONNECTIONS,
                    keepalive_expiry=_KEEPALIVE_SECONDS,
                ),
                trust_env=False,
            )
        )

    async def aclose(self) -> None:
        await self._transport.aclose()

    @property
    def is_idle(self) -> bool:
        """Whether no request runs, as far as connections tell."""
        connections = self._transport._pool.connections  # noqa: SLF001 - httpx does not tell
        return all(connection.is_idle() for connection in connections)

    def names(self) -> tuple[str, ...]:
        return ("",)

    def on(self, name: str) -> VllmEngine:  # noqa: ARG002 - there is one
        return self

    async def models(self) -> list[ServedModel]:
        return wire.understand(wire.models, await self._get("/v1/models"), "/v1/models")

    async def version(self) -> str:
        return wire.understand(wire.version, await self._get("/version"), "/version")

    async def paths(self) -> frozenset[str]:
        try:
            document = await self._get(_DOCUMENT)
        except EngineResponseError:
            return frozenset()
        return wire.understand(wire.paths, document, _DOCUMENT)

    async def health(self) -> None:
        await self._get("/health")

    async def tokenize(self, model: str, text: str, *, add_special_tokens: bool) -> TokenIds:
        return await self._tokenize(
            {"model": model, "prompt": text, "add_special_tokens": add_special_tokens}
        )

    async def render(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
        asker: Principal | None = None,
    ) -> TokenIds:
        await self._media.require(messages, asker)
        return await self._tokenize(
            {
                **(options or {}),
                "model": model,
                "messages": list(messages),
                "add_generation_prompt": add_generation_prompt,
            }
        )

    async def rendered(self, path: str, body: bytes) -> TokenIds:
        """Needs ``--enable-scale-out``."""
        path += "/render"
        with self._spans.http("POST", path) as span:
            content = await self._read("POST", path, body, again=True, span=span)
        return wire.understand(wire.rendered_ids, content, path)

    async def special_tokens(self, model: str) -> frozenset[str]:
        tokenizer = self._tokenizers.get(model)
        if tokenizer is None:
            tokenizer = self._tokenizers[model] = await self._ask_tokenizer()
        return tokenizer.special_tokens

    async def require_tools(self, model: str, tools: Sequence[Mapping[str, Any]]) -> bool:
        messages = [{"role": "user", "content": "?"}]
        body = json.dumps({"model": model, "messages": messages, "tools": list(tools)}).encode()
        with self._spans.http("POST", _RENDER) as span, self.faults():
            response = await self._send("POST", _RENDER, body, [_JSON], again=True, span=span)
            content = await _whole(response)
        if response.is_error and response.status_code != 404:
            raise wire.refusal(response.status_code, content, _RENDER, model)
        return response.is_success

    async def chat_template(self, model: str) -> str | None:
        """Asks vLLM every time: after a restart it may have a different template."""
        tokenizer = self._tokenizers[model] = await self._ask_tokenizer()
        return tokenizer.chat_template

    async def kv_dtype(self) -> str | None:
        return wire.kv_dtype((await self._get("/metrics")).decode(errors="replace"))

    async def kv_room(self) -> int | None:
        return wire.kv_room((await self._get("/metrics")).decode(errors="replace"))

    async def started(self) -> str | None:
        return wire.started((await self._get("/metrics")).decode(errors="replace"))

    async def look(
        self, generation: Generation, places: Sequence[int], probes: Sequence[int] = ()
    ) -> LookAnswer:
        numbers = numbered(places, probes)
        # A look at a long context is megabytes of ids.
        body = await in_thread(wire.look_body, generation, places, probes)
        with self._spans.generation(generation, stream=False) as span:
            content = await self._read("POST", _COMPLETIONS, body, model=generation.model, span=span)
            return await in_thread(
                wire.understand, lambda answer: wire.look(answer, numbers), content, _COMPLETIONS
            )

    async def complete(self, generation: Generation) -> Completion:
        """Shield this call: its cancellation aborts the request, which can kill a vLLM that is loading KV."""
        body = wire.completion_body(generation, stream=False)
        with self._spans.generation(generation, stream=False) as span:
            content = await self._read(
                "POST",
                "/v1/completions",
                body,
                model=generation.model,
                span=span,
                session=generation.session,
            )
            prompt_tokens = len(generation.token_ids)
            completion = wire.understand(
                lambda answer: wire.completion(answer, prompt_tokens), content, _COMPLETIONS
            )
            note_generation(span, completion)
        return completion

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """Shield this call until the first delta, for the reason given in :meth:`complete`."""
        body = wire.completion_body(generation, stream=True)
        with self._spans.generation(generation, stream=True) as span:
            async with self._answer(
                "POST",
                "/v1/completions",
                body,
                model=generation.model,
                span=span,
                session=generation.session,
            ) as response:
                complete, decision, events = False, self._decision(response), Events()
                async for chunk in response.aiter_bytes():
                    for data in filter(None, map(data_of, events.take(chunk))):
                        if data == _DONE:
                            complete = True
                            continue
                        delta = _delta(data)
                        note_generation(span, delta)
                        yield delta if decision is None else replace(delta, decision=decision)
            if not complete and data_of(events.rest()) != _DONE:
                raise EngineConnectionError(
                    f"vLLM at {self._url} closed a stream before the last event.", url=self._url
                )

    async def counters(self) -> Counters:
        exposition = await self._get("/metrics")
        try:
            return wire.counters(exposition.decode())
        except ValueError as error:
            raise EngineResponseError("vLLM's /metrics is not Prometheus text.", url=self._url) from error

    async def abort(self, generation_ids: Sequence[str]) -> bool:
        body = json.dumps({"request_ids": list(generation_ids)}).encode()
        with self._spans.http("POST", _ABORT) as span, self.faults():
            response = await self._send("POST", _ABORT, body, [_JSON], span=span)
            await response.aclose()
        return response.is_success

    @asynccontextmanager
    async def forward(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        session: SessionName | None = None,
    ) -> AsyncIterator[ForwardedResponse]:
        """``path`` includes the query. Sends the gateway's authorization instead of the caller's."""
        request_headers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in headers.items()]
        request_headers = [
            (name, value) for name, value in request_headers if name.lower() not in _NOT_FORWARDED
        ]
        with self._spans.http(method, path) as span:
            async with self._forwarded(method, path, body, request_headers, span, session) as response:
                yield response

    @asynccontextmanager
    async def _forwarded(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        span: Span,
        session: SessionName | None,
    ) -> AsyncIterator[ForwardedResponse]:
        with self.faults():
            response = await self._send(method, path, body, headers, span=span, session=session)
        try:
            if response.status_code in {401, 403}:
                # The key is the gateway's, so the client gets an engine error.
                raise wire.refusal(response.status_code, b"", path, None)
            if response.is_redirect:
                raise EngineResponseError(
                    f"vLLM at {self._url} answered with a redirect ({response.status_code}). Name the engine's own address.",
                    url=self._url,
                    status=response.status_code,
                )
            if response.is_error:
                span.failed(str(response.status_code))
            response_headers = [
                (name, value) for name, value in response.headers.raw if _passes(name.lower())
            ]
            # The stream instead of ``aiter_raw``, whose work per chunk costs more than everything else done here.
            assert isinstance(response.stream, AsyncIterable)
            decision = self._decision(response)
            yield _Forwarded(response.status_code, response_headers, decision, response.stream, self)
        finally:
            await response.aclose()

    def _decision(self, response: httpx2.Response) -> str | None:
        return None if self._router is None else decision_of(response.headers.raw)

    def faults(self) -> AbstractContextManager[None]:
        """Map the HTTP client's exceptions in the block to coded errors."""
        return coded_errors(self._url, self._timeout_seconds, self._origin)

    async def _ask_tokenizer(self) -> Tokenizer:
        with self._spans.http("GET", "/tokenizer_info") as span, self.faults():
            response = await self._send("GET", "/tokenizer_info", b"", [], again=True, span=span)
            content = await _whole(response)
        if response.status_code == 404:
            return Tokenizer(frozenset(), None)
        if response.is_error:
            raise wire.refusal(response.status_code, content, "/tokenizer_info", None)
        return wire.understand(wire.tokenizer, content, "/tokenizer_info")

    async def _tokenize(self, request: Mapping[str, Any]) -> TokenIds:
        body, model = json.dumps(request).encode(), request["model"]
        with self._spans.http("POST", "/tokenize") as span:
            content = await self._read("POST", "/tokenize", body, model=model, again=True, span=span)
        return wire.understand(wire.token_ids, content, "/tokenize")

    async def _get(self, path: str) -> bytes:
        with self._spans.http("GET", path) as span:
            return await self._read("GET", path, b"", again=True, span=span)

    async def _read(self, method: str, path: str, body: bytes, **options: Any) -> bytes:
        async with self._answer(method, path, body, **options) as response:
            return await _whole(response)

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        model: str | None = None,
        again: bool = False,
        span: Span = NO_SPAN,
        session: SessionName | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        headers = [_JSON] if body else []
        with self.faults():
            response = await self._send(method, path, body, headers, again=again, span=span, session=session)
            try:
                if response.is_error:
                    raise wire.refusal(response.status_code, await _whole(response), path, model)
                yield response
            finally:
                await response.aclose()

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        again: bool = False,
        span: Span = NO_SPAN,
        session: SessionName | None = None,
    ) -> httpx2.Response:
        if self._router is not None:
            headers = self._router.onward(headers, session)
        response = await self._exchange(method, path, body, self._spans.onward(headers, span), again=again)
        span.note({"http.response.status_code": response.status_code})
        if self._router is not None:
            self._router.answered(response.headers.raw, session, span)
        return response

    async def _exchange(
        self, method: str, path: str, body: bytes, headers: list[tuple[bytes, bytes]], *, again: bool
    ) -> httpx2.Response:
        freshness = Freshness()
        request = httpx2.Request(
            method,
            _parsed(self._url + path),
            content=body or None,
            headers=[*self._headers, *headers],
            extensions={**self._extensions, "trace": freshness},
        )
        try:
            return await self._transport.handle_async_request(request)
        except httpx2.TransportError as error:
            broken = isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError)
            if not (was_stale(error, freshness) or (again and broken)):
                raise
        request.extensions = self._extensions
        return await self._transport.handle_async_request(request)


async def _whole(response: httpx2.Response) -> bytes:
    await read_bounded(response, _MOST_BYTES)
    return response.content


def _passes(name: bytes) -> bool:
    return name in _ANSWERED or name.startswith(_ANSWERED_PREFIXES)


def _delta(data: bytes) -> Delta:
    return wire.understand(wire.delta, data, "a streamed /v1/completions")
