"""Tells the gateway the token ids of prompt and answer, on every protocol that vLLM serves: ``--middleware cwm_engine.turn_ids.TurnIds``.

vLLM's Messages and Responses APIs do not tell them. To a request with the header ``cwm-token-ids`` the answer has that header, too; a stream
has a comment ``: cwm-token-ids {"prompt_token_ids": [...], "token_ids": [...]}`` in front of the first event to which ids belong, and a JSON object
begins with these two fields. An answer that vLLM broke off, because it ends, has ``"aborted": true`` behind them: some protocols call it complete. Read in vLLM 0.32: every protocol calls ``generate`` of one engine client for each prompt, for a stream with
the ids that are new; of several answers only number 0 counts.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, TypeAlias

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]
_App: TypeAlias = Callable[[_Message, _Receive, _Send], Awaitable[None]]

_HEADER = b"cwm-token-ids"


class _Report:
    """The ids of one request that its client does not have yet."""

    def __init__(self) -> None:
        self._prompt: list[int] | None = None
        self._new: list[int] = []
        self._is_aborted = False

    def begin(self) -> None:
        """Another prompt of the same request: only the last one counts."""
        self._prompt, self._new = None, []

    def take(self, output: Any, *, first: bool) -> None:
        if first:
            self._prompt = list(output.prompt_token_ids or ())
        for answer in output.outputs:
            if answer.index == 0:
                self._new.extend(answer.token_ids)
                self._is_aborted = self._is_aborted or getattr(answer, "finish_reason", None) == "abort"

    def fields(self) -> str:
        """What is new, as fields of a JSON object; empty if nothing is."""
        fields: dict[str, Any] = {}
        if self._prompt is not None:
            fields["prompt_token_ids"] = self._prompt
        if self._new:
            fields["token_ids"] = self._new
        if self._is_aborted:
            fields["aborted"] = True
        self._prompt, self._new, self._is_aborted = None, [], False
        return json.dumps(fields, separators=(",", ":"))[1:-1]


_REPORT: ContextVar[_Report | None] = ContextVar("cwm_token_ids", default=None)


class TurnIds:
    """ASGI middleware of vLLM's server."""

    def __init__(self, app: _App) -> None:
        self._app = app
        self._tapped: Any = None

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http" or not any(name == _HEADER for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        client = getattr(scope["app"].state, "engine_client", None)
        if client is not None and client is not self._tapped:
            _tap(client)
            self._tapped = client
        answer = _Answer(send)
        token = _REPORT.set(answer.report)
        try:
            await self._app(scope, receive, answer)
        finally:
            _REPORT.reset(token)


class _Answer:
    """Puts the ids into an answer on its way out."""

    def __init__(self, send: _Send) -> None:
        self.report = _Report()
        self._send = send
        self._start: _Message | None = None
        self._streamed = False

    async def __call__(self, message: _Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (_HEADER, b"1")]
            self._streamed = _is(message, b"text/event-stream")
            if not self._streamed and message["status"] == 200 and _is(message, b"application/json"):
                self._start = message
                return
        elif message["type"] == "http.response.body":
            if self._streamed:
                if fields := self.report.fields():
                    comment = f": cwm-token-ids {{{fields}}}\n\n".encode()
                    message = {**message, "body": comment + message.get("body", b"")}
            elif self._start is not None:
                message = await self._begin(self._start, message)
        await self._send(message)

    async def _begin(self, start: _Message, message: _Message) -> _Message:
        """The first part of a JSON body, after its head, whose length is no longer what it was."""
        self._start = None
        body = message.get("body", b"")
        if body.startswith(b"{") and (fields := self.report.fields()):
            added = f"{{{fields}{'' if body[1:2] == b'}' else ','}".encode()
            body = added + body[1:]
            start["headers"] = [
                (name, b"%d" % (int(value) + len(added) - 1) if name.lower() == b"content-length" else value)
                for name, value in start["headers"]
            ]
        await self._send(start)
        return {**message, "body": body}


def _tap(client: Any) -> None:
    generate = client.generate

    def tapped(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        outputs = generate(*args, **kwargs)
        report = _REPORT.get()
        return outputs if report is None else _listening(outputs, report)

    client.generate = tapped


async def _listening(outputs: AsyncIterator[Any], report: _Report) -> AsyncIterator[Any]:
    report.begin()
    first = True
    try:
        async for output in outputs:
            report.take(output, first=first)
            first = False
            yield output
    finally:
        await outputs.aclose()  # type: ignore[attr-defined]


def _is(start: _Message, content_type: bytes) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(content_type) for name, value in start["headers"]
    )
