"""What stands between a gateway and its engine: it has the model say what a scene wants, and sets traps.

A model of 135M parameters calls no tool by itself. Each request says where in its scene it is: so many results stand behind the scene's
words. A repeated request gets the same answer. Ids, parsers and KV are the engine's own.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

_CHAT, _MESSAGES, _RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
FEW_WORDS: Final = "All of it is done as it was asked."
"""The answer to what is in no scene: a client that asks the model to go on, or for a summary."""
_ASIDE_TOKENS: Final = 48
_EVENTS_BEFORE_TRAP: Final = 3
_RESULTS: Final = frozenset({"tool_result", "function_call_output", "custom_tool_call_output"})
_HOP: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool that the agent has."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def text(self) -> str:
        """As vLLM's hermes parser reads it."""
        return f"<tool_call>\n{json.dumps({'name': self.name, 'arguments': self.arguments})}\n</tool_call>"

    @property
    def schema(self) -> dict[str, Any]:
        """Of these arguments alone."""
        properties = {name: {"enum": [value]} for name, value in self.arguments.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": [*properties],
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True)
class Scene:
    """A person says ``words``; the model makes the ``calls``, one after the other, and says ``answer``."""

    words: str
    answer: str
    calls: tuple[Call, ...] = ()


@dataclass(slots=True)
class Trap:
    """``action`` runs in the middle of the answer to the request that has ``results`` behind the words of ``scene``."""

    scene: Scene
    results: int
    action: Callable[[], Coroutine[Any, Any, None]]
    sprung: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Stage:
    """``target`` is the engine. ``on_lost`` breaks the gateway's connections where the engine takes none."""

    target: str
    scenes: Sequence[Scene]
    url: str = ""
    trap: Trap | None = None
    on_lost: Callable[[], None] | None = None

    async def serve(self, request: Request) -> Response:
        body, path = await request.body(), request.url.path
        trap = None
        if request.method == "POST" and path.removesuffix("/render") in {_CHAT, _MESSAGES, _RESPONSES}:
            fields = json.loads(body)
            scene, results = _place(fields, self.scenes)
            if (
                self.trap
                and (self.trap.scene, self.trap.results) == (scene, results)
                and fields.get("stream")
            ):
                trap = self.trap
            body = json.dumps(_forced(path.removesuffix("/render"), fields, scene, results)).encode()
        http = httpx2.AsyncClient(timeout=None, trust_env=False)
        query = f"?{request.url.query}" if request.url.query else ""
        headers = {name: value for name, value in request.headers.items() if name not in _HOP}
        try:
            answer = await http.send(
                http.build_request(
                    request.method, f"{self.target}{path}{query}", content=body, headers=headers
                ),
                stream=True,
            )
        except httpx2.TransportError:
            await http.aclose()
            if self.on_lost is not None:
                self.on_lost()
            return Response(status_code=502)

        async def chunks() -> AsyncIterator[bytes]:
            events = 0
            try:
                async for chunk in answer.aiter_raw():
                    events += chunk.count(b"data: ")
                    yield chunk
                    if trap is not None and trap.sprung is None and events >= _EVENTS_BEFORE_TRAP:
                        # A task of its own: this one ends with the gateway's connection.
                        trap.sprung = asyncio.create_task(trap.action())
                        await asyncio.shield(trap.sprung)
            finally:
                await answer.aclose()
                await http.aclose()

        headers = {name: value for name, value in answer.headers.items() if name not in _HOP}
        return StreamingResponse(chunks(), answer.status_code, headers)


def _place(fields: Mapping[str, Any], scenes: Sequence[Scene]) -> tuple[Scene | None, int]:
    """The scene, and how many results stand behind its words; none where somebody said something else since."""
    results = 0
    for text in reversed(_said(fields)):
        if text is None:
            results += 1
        elif scene := next((each for each in scenes if each.words in text), None):
            return scene, results
        elif not text.lstrip().startswith("<system-reminder>"):
            break
    return None, 0


def _said(fields: Mapping[str, Any]) -> list[str | None]:
    """What the user said, in order; None for each result of a tool."""
    said: list[str | None] = []
    asked = fields.get("messages") or fields.get("input") or ()
    for each in ({"role": "user", "content": asked},) if isinstance(asked, str) else asked:
        if each.get("role") == "tool" or each.get("type") in _RESULTS:
            said.append(None)
        elif each.get("role") == "user":
            content = each.get("content") or ""
            parts = [{"text": content}] if isinstance(content, str) else content
            said += [None if part.get("type") in _RESULTS else str(part.get("text", "")) for part in parts]
    return said


def _forced(path: str, fields: dict[str, Any], scene: Scene | None, results: int) -> dict[str, Any]:
    tools = {each.get("function", each).get("name"): each for each in fields.get("tools") or ()}
    if not tools:
        limit = "max_output_tokens" if path == _RESPONSES else "max_tokens"
        fields.pop("max_completion_tokens", None)
        return {**fields, limit: _ASIDE_TOKENS}
    calls = scene.calls if scene else ()
    call = calls[results] if results < len(calls) else None
    answer = scene.answer if scene else FEW_WORDS
    if path != _MESSAGES:
        return {**fields, "structured_outputs": {"choice": [call.text if call else answer]}}
    if call is None:
        schema = {"type": "string", "enum": [answer]}
        choice, form = (
            {"type": "none"},
            {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        )
        return {**fields, **form, "tool_choice": choice}
    tools[call.name] |= {"input_schema": call.schema, "strict": True}
    return {**fields, "tool_choice": {"type": "tool", "name": call.name}}


@asynccontextmanager
async def staged(engine_url: str, scenes: Sequence[Scene]) -> AsyncIterator[Stage]:
    stage = Stage(engine_url, scenes)
    app = Starlette(routes=[Route("/{rest:path}", stage.serve, methods=["GET", "POST", "DELETE", "HEAD"])])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        stage.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield stage
        finally:
            server.should_exit = server.force_exit = True
            await serving
