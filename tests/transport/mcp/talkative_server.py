"""A real MCP server whose tools answer as much as they are asked to, and remember what they were given."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools import ToolResult
from mcp_types import Annotations, EmbeddedResource, ImageContent, TextContent, TextResourceContents
from typing_extensions import TypedDict

from cwm.domain.upstream import UpstreamSpec
from tests.transport.mcp.gateway import serving

WORDS = (
    "river",
    "stone",
    "lantern",
    "quiet",
    "Zürich",
    "東京",
    "naïve",
    "orbit",
    "maple",
    "thunder",
    "violet",
    "🙂",
)


LISTED = {"type": "object", "properties": {"result": {"type": "array"}}, "required": ["result"]}


class Row(TypedDict):
    id: int
    name: str
    note: str


class Rows(TypedDict):
    rows: list[Row]
    total: int


def prose(size: int) -> str:
    """The same text for the same size, of about so many characters: in sentences, with all lengths of UTF-8."""
    chosen, sentences, length = random.Random(size), list[str](), 0
    while length < size:
        sentence = " ".join(chosen.choices(WORDS, k=12)).capitalize() + "."
        sentences.append(sentence)
        length += len(sentence) + 1
    return " ".join(sentences)


def rows(count: int) -> Rows:
    listed: list[Row] = [{"id": n, "name": f"row {n}", "note": prose(80)} for n in range(count)]
    return {"rows": listed, "total": count}


@dataclass(slots=True)
class Given:
    """What the server was given."""

    values: list[Any] = field(default_factory=list)


def talkative_server(given: Given) -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("talkative", version="1.2.3")

    @server.tool(name="prose")
    def tell_prose(size: int) -> str:
        """A text of about so many characters."""
        return prose(size)

    @server.tool(name="rows")
    def tell_rows(count: int) -> Rows:
        """So many rows."""
        return rows(count)

    @server.tool(name="list", output_schema=LISTED)
    def tell_list(count: int) -> ToolResult:
        """So many rows, each in a text of its own, too."""
        listed = rows(count)["rows"]
        texts = [
            TextContent(type="text", text=json.dumps(row, ensure_ascii=False, separators=(",", ":")))
            for row in listed
        ]
        return ToolResult(content=list(texts), structured_content={"result": listed})

    @server.tool
    def mixed(size: int) -> ToolResult:
        """A text, bytes, and structured content that says something else."""
        data = base64.b64encode(random.Random(size).randbytes(size)).decode()
        return ToolResult(
            content=[
                TextContent(type="text", text=prose(size)),
                ImageContent(type="image", data=data, mime_type="image/png"),
            ],
            structured_content={"size": size},
            meta={"example.org/kept": True},
        )

    @server.tool
    def letter(size: int) -> ToolResult:
        """A text for somebody and a resource, with all that MCP lets be said about them."""
        return ToolResult(
            content=[
                TextContent(
                    type="text",
                    text=prose(size),
                    annotations=Annotations(audience=["user"], priority=0.5),
                    _meta={"example.org/page": 1},
                ),
                EmbeddedResource(
                    type="resource",
                    resource=TextResourceContents(
                        uri="notes://today", mime_type="text/plain", text='{"a": 1}', _meta={"x": 2}
                    ),
                ),
            ],
            meta={"example.org/kept": True},
        )

    @server.tool
    def fail(size: int) -> str:
        """Fail at length."""
        raise ToolError(prose(size))

    @server.tool
    def take(value: Any, more: list[Any] | None = None) -> str:
        """Remember what is given."""
        given.values.append(value if more is None else [value, *more])
        return "taken"

    return server


@asynccontextmanager
async def talkative(name: str) -> AsyncIterator[tuple[UpstreamSpec, Given]]:
    """It on a socket, and how it is configured."""
    given = Given()
    app = talkative_server(given).http_app(path="/mcp", stateless_http=True)
    async with serving(app) as url:
        yield UpstreamSpec(name, url=f"{url}/mcp", stateless=True), given
