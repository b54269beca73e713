"""What stands between an agent program and the gateway: it bounds answers, has one tool called, and keeps what passed.

A model of 135M parameters calls no tool by itself, does not stop, and may say nothing, which agents leave out or repeat. So it answers
every request with a few words, and one request gets a ``tool_choice``; the tool's parameters are narrowed in all of them, so that the
agent looks the same in each. The others may call none: in place of a few words vLLM lets a model call a strict tool.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

ANSWER_TOKENS: Final = 64
CALL_TOKENS: Final = 160
_FEW_WORDS: Final = r"[A-Z][a-z]{2,7}( [a-z]{2,7}){1,4}\."
_MESSAGES: Final = "/v1/messages"
_NOT_PASSED: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}
)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the program, and what it is called with."""

    name: str
    arguments: Mapping[str, str]

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                name: {"type": "string", "enum": [value]} for name, value in self.arguments.items()
            },
            "required": list(self.arguments),
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True)
class Passed:
    """A request to a model, and the head of its answer."""

    path: str
    body: dict[str, Any]
    status: int
    headers: Mapping[str, str]

    @property
    def session(self) -> str | None:
        return self.headers.get("cwm-session-id")

    @property
    def turn(self) -> str | None:
        return self.headers.get("cwm-turn")

    @property
    def has_tools(self) -> bool:
        return bool(self.body.get("tools"))


@dataclass(slots=True)
class Proxy:
    """``target`` is the gateway, which may move. ``tool`` is called by the next request that has it, if ``calls``.

    ``answers``: what the model is made to say to the next requests. ``hidden`` are tools that the model is not offered: all of CWM's are
    longer than its context.
    """

    target: str
    url: str = ""
    tool: Tool | None = None
    calls: bool = False
    answers: list[str] = field(default_factory=list)
    hidden: frozenset[str] = frozenset()
    passed: list[Passed] = field(default_factory=list)

    async def serve(self, request: Request) -> Response:
        body = await request.body()
        fields: dict[str, Any] | None = None
        if request.method == "POST" and request.url.path.startswith("/v1/"):
            fields = self._bounded(request.url.path, json.loads(body))
            body = json.dumps(fields).encode()
        http = httpx2.AsyncClient(timeout=300, trust_env=False)
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        outgoing = http.build_request(
            request.method,
            f"{self.target}{path}",
            content=body,
            headers={name: value for name, value in request.headers.items() if name not in _NOT_PASSED},
        )
        answer = await http.send(outgoing, stream=True)
        if fields is not None:
            self.passed.append(Passed(request.url.path, fields, answer.status_code, dict(answer.headers)))

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    yield chunk
            finally:
                await answer.aclose()
                await http.aclose()

        headers = {name: value for name, value in answer.headers.items() if name not in _NOT_PASSED}
        return StreamingResponse(chunks(), answer.status_code, headers)

    def _bounded(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        tool, limit = self.tool, ANSWER_TOKENS
        if self.hidden:
            self._hide(fields.get("tools") or [])
        offered = [inner for each in fields.get("tools") or () for inner in each.get("tools") or (each,)]
        definitions = [each.get("function", each) for each in offered]
        own = [each for each in definitions if tool is not None and each.get("name") == tool.name]
        for definition in own:
            assert tool is not None
            definition["input_schema" if path == _MESSAGES else "parameters"] = tool.schema
            definition["strict"] = True
        if own and self.calls:
            assert tool is not None
            self.calls, limit = False, CALL_TOKENS
            fields["tool_choice"] = _named(tool, path)
        else:
            if definitions:
                fields["tool_choice"] = {"type": "none"} if path == _MESSAGES else "none"
            if self.answers:
                text = self.answers.pop(0)
                limit, fields["structured_outputs"] = len(text), {"choice": [text]}
            elif path == _MESSAGES:
                schema = {"type": "string", "pattern": f"^{_FEW_WORDS}$"}
                fields["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
            else:
                fields["structured_outputs"] = {"regex": _FEW_WORDS}
        names = {_MESSAGES: "max_tokens", "/v1/responses": "max_output_tokens"}
        fields.pop("max_completion_tokens", None)
        return {**fields, names.get(path, "max_tokens"): limit}

    def _hide(self, tools: list[dict[str, Any]]) -> None:
        for each in tools:
            if "tools" in each:
                self._hide(each["tools"])
        tools[:] = [
            each
            for each in tools
            if each.get("function", each).get("name") not in self.hidden and each.get("tools") != []
        ]


def _named(tool: Tool, path: str) -> dict[str, Any]:
    """The ``tool_choice`` of a request that must call it."""
    if path == _MESSAGES:
        return {"type": "tool", "name": tool.name}
    if path == "/v1/chat/completions":
        return {"type": "function", "function": {"name": tool.name}}
    return {"type": "function", "name": tool.name}


@asynccontextmanager
async def proxied(gateway_url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(gateway_url)
    app = Starlette(routes=[Route("/{rest:path}", proxy.serve, methods=["GET", "POST", "DELETE", "HEAD"])])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        proxy.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield proxy
        finally:
            server.should_exit = True
            await serving
