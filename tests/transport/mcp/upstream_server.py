"""A real MCP server to stand behind the gateway; also a program: ``python upstream_server.py`` speaks stdio.

It keeps a counter for each of its MCP sessions, or one for all where its era has none.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import get_http_headers
from fastmcp.tools import ToolResult
from mcp_types import (
    CompletionArgument,
    CompletionContext,
    EmptyResult,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
    SubscribeRequestParams,
    TextContent,
    ToolAnnotations,
    ToolListChangedNotification,
    UnsubscribeRequestParams,
)


@dataclass(slots=True)
class Seen:
    """What reached the server."""

    calls: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    authorizations: list[str | None] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)


SAFE = ToolAnnotations(read_only_hint=True)


def session_of(context: Any) -> str:
    """Its MCP session, if its era has one."""
    return context.session._connection.session_id or "all"


def upstream_server(seen: Seen, *, completes: bool = True) -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("upstream", version="1.2.3")
    _plain_tools(server, seen)
    _waiting_tools(server, seen)
    _tools_on_itself(server, seen)
    _resources_and_prompts(server)
    if completes:
        _completions(server, seen)
    return server


def _plain_tools(server: FastMCP[Any], seen: Seen) -> None:
    @server.tool(annotations=SAFE)
    def echo(message: str) -> str:
        """Say it again."""
        seen.calls["echo"] += 1
        return message

    @server.tool
    def count(context: Context) -> int:
        """One more than the last time in this session."""
        session = session_of(context)
        seen.counts[session] += 1
        return seen.counts[session]

    @server.tool
    def fail() -> str:
        """Fail as tools do."""
        raise ToolError("I can not.")

    @server.tool
    async def told(context: Context) -> str:
        """Tell of progress."""
        for step in (1, 2):
            await context.report_progress(step, 2, f"step {step}")
        return "told"


def _waiting_tools(server: FastMCP[Any], seen: Seen) -> None:
    @server.tool
    async def hold(context: Context) -> str:
        """Begin, and go on only when told to."""
        seen.calls["hold"] += 1
        seen.began.set()
        try:
            await seen.go_on.wait()
        except asyncio.CancelledError:
            seen.given_up.set()
            raise
        return "held"

    @server.tool(annotations=SAFE)
    async def look() -> str:
        """Like hold, but safe to repeat."""
        seen.calls["look"] += 1
        seen.began.set()
        if seen.calls["look"] == 1:
            await seen.go_on.wait()
        return "looked"


def _tools_on_itself(server: FastMCP[Any], seen: Seen) -> None:
    @server.tool
    def die() -> str:
        """End this process at once, as a crash does."""
        os._exit(3)

    @server.tool
    def process() -> int:
        """Which process this is."""
        return os.getpid()

    @server.tool
    def whoami() -> str:
        """The credentials that came with the call."""
        authorization = get_http_headers(include={"authorization"}).get("authorization")
        seen.authorizations.append(authorization)
        return str(authorization)

    @server.tool
    def link() -> ToolResult:
        """Point at a resource."""
        to = ResourceLink(type="resource_link", uri="notes://today", name="today")
        return ToolResult(content=[TextContent(type="text", text="see"), to])

    @server.tool
    async def grow(context: Context) -> str:
        """Have one more tool from now on, and say so."""

        @server.tool(name="grown")
        def grown() -> str:
            """New here."""
            return "grown"

        await context.send_notification(ToolListChangedNotification())
        return "grew"


def _resources_and_prompts(server: FastMCP[Any]) -> None:
    subscribed: set[tuple[str, str]] = set()

    async def subscribe(context: Any, params: SubscribeRequestParams) -> EmptyResult:
        subscribed.add((session_of(context), str(params.uri)))
        return EmptyResult()

    async def unsubscribe(context: Any, params: UnsubscribeRequestParams) -> EmptyResult:
        subscribed.discard((session_of(context), str(params.uri)))
        return EmptyResult()

    wire = server._mcp_server
    wire.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
    wire.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)

    @server.tool
    async def touch(context: Context, part: str = "") -> str:
        """Change today's notes, or a part of them, and tell who subscribed to them."""
        if (session_of(context), "notes://today") in subscribed:
            await context.session.send_resource_updated(f"notes://today{part}")
        return "touched"

    @server.resource("notes://today")
    def today() -> str:
        """What there is to do."""
        return "milk"

    @server.resource("notes://on/{day}")
    def on(day: str) -> str:
        """What there is to do on a day."""
        return f"on {day}"

    @server.prompt
    def greet(name: str) -> str:
        """Greet someone."""
        return f"Hello, {name}."


def _completions(server: FastMCP[Any], seen: Seen) -> None:
    known = {"greet": ("Ada", "Alan", "Grace"), "notes://on/{day}": ("monday", "sunday")}

    @server.completion
    def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> list[str]:
        """Those that begin so, but what was given before."""
        seen.calls["complete"] += 1
        given = set(((context and context.arguments) or {}).values())
        of = known.get(ref.name if isinstance(ref, PromptReference) else ref.uri, ())
        return [value for value in of if value.startswith(argument.value) and value not in given]


if __name__ == "__main__":
    sys.stderr.write(f"said on stderr, with {os.environ.get('UPSTREAM_SECRET', 'no secret')}\n")
    asyncio.run(upstream_server(Seen()).run_stdio_async(show_banner=False))
