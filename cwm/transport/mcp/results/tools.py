"""Tools on stored results: read them page by page, and query them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastmcp.tools import FunctionTool, ToolResult
from mcp_types import TextContent
from pydantic import Field

from cwm.domain.cursor import CURSOR_CHARS
from cwm.domain.errors import InvalidParameterError
from cwm.domain.result_query import Query, QueryKind
from cwm.domain.results import HANDLE_PATTERN, PartKind
from cwm.services.results.query import AnswerPage
from cwm.services.results.results import Page
from cwm.transport.mcp.contract.render.scalars import moment
from cwm.transport.mcp.contract.tool import tool
from cwm.transport.mcp.mcp_server import CALLER, Caller
from cwm.transport.mcp.results import schemas as schemas_results

MIN_TOKENS: Final = 64
MAX_TOKENS: Final = 10_000
DEFAULT_TOKENS: Final[Mapping[str, int]] = {"result_read": 4_000, "result_query": 2_000}

Handle: TypeAlias = Annotated[str, Field(pattern=HANDLE_PATTERN)]
Cursor: TypeAlias = Annotated[str, Field(min_length=1, max_length=2 * CURSOR_CHARS)]
PartIndex: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1)]
Tokens: TypeAlias = Annotated[int, Field(ge=MIN_TOKENS, le=MAX_TOKENS)]
Expression: TypeAlias = Annotated[str, Field(min_length=1, max_length=2_000)]
Pattern: TypeAlias = Annotated[str, Field(min_length=1, max_length=1_000)]
LineCount: TypeAlias = Annotated[int, Field(ge=1, le=100_000)]


async def result_read(
    cursor: Annotated[
        Cursor | None, Field(description="Cursor from a preview or an earlier page; reading continues there")
    ] = None,
    handle: Annotated[
        Handle | None, Field(description="Handle of a stored result, instead of a cursor")
    ] = None,
    page: Annotated[
        Annotated[int, Field(ge=1)] | None,
        Field(description="With handle: number of the page, from 1; the first if left out"),
    ] = None,
    part: Annotated[
        PartIndex | None,
        Field(description="With handle: number of the part of the result, from 0; the first if left out"),
    ] = None,
    max_tokens: Annotated[
        Tokens, Field(description="Maximum number of tokens of text to return")
    ] = DEFAULT_TOKENS["result_read"],
    caller: Caller = CALLER,
) -> ToolResult:
    """Read a stored tool result page by page, exactly as the tool returned it.

    A result too large for your context is stored whole, and you get a preview, a handle and a cursor instead.
    The pages of a stored result never change; joined, they are the original, byte for byte. Pass next_cursor as
    cursor to read on, or read any page by handle. The first text of the answer is the page itself. To find
    something specific, result_query takes far fewer tokens.

    Errors: CWM-1003 malformed field, no such page or part, or a cursor that is malformed, expired or
    someone else's (context.reason); CWM-2005 no such stored result, or it expired; CWM-4002 the store cannot be
    read (retryable).
    """
    if cursor is not None and (page is not None or part is not None):
        raise InvalidParameterError("A cursor includes the page and part: leave them out.", field="page")
    stored_page = await caller.services.results.read(
        caller.principal,
        cursor=cursor,
        handle=handle,
        page=page or 1,
        part=part or 0,
        budget_tokens=max_tokens,
    )
    return _with_text(_page(stored_page))


async def result_query(
    handle: Annotated[Handle, Field(description="Handle of a stored result")],
    part: Annotated[PartIndex, Field(description="Number of the part of the result, from 0")] = 0,
    jmespath: Annotated[
        Expression | None,
        Field(description="JMESPath expression for a JSON part, such as items[?price > `9`].name"),
    ] = None,
    json_pointer: Annotated[
        Annotated[str, Field(max_length=2_000)] | None,
        Field(description="JSON pointer (RFC 6901) into a JSON part, such as /items/0/name"),
    ] = None,
    regex: Annotated[
        Pattern | None, Field(description="RE2 pattern; ^ and $ match at line ends, (?i) ignores case")
    ] = None,
    search: Annotated[Pattern | None, Field(description="Text to find, ignoring case")] = None,
    head: Annotated[LineCount | None, Field(description="Return this many lines from the start")] = None,
    tail: Annotated[LineCount | None, Field(description="Return this many lines from the end")] = None,
    count: Annotated[
        Literal["lines", "items", "characters", "bytes", "tokens"] | None,
        Field(description="Count these; items are those of a JSON array or object"),
    ] = None,
    context: Annotated[
        int, Field(ge=0, le=50, description="With regex and search: lines to show around each match")
    ] = 0,
    cursor: Annotated[
        Cursor | None, Field(description="next_cursor of the same query; continues where that ended")
    ] = None,
    max_tokens: Annotated[
        Tokens, Field(description="Maximum number of tokens of text to return")
    ] = DEFAULT_TOKENS["result_query"],
    caller: Caller = CALLER,
) -> ToolResult:
    """Find something in a stored tool result without reading all of it. Give exactly one kind of query.

    jmespath and json_pointer return JSON. regex and search return the matching lines with their numbers, at
    most 1000 matches; of a long line, only the text around each match. An answer longer than max_tokens is
    truncated: pass next_cursor as cursor with the same query for the rest. The first text is the answer itself.

    Errors: CWM-1003 malformed field, not exactly one query, a query that does not suit the part or takes
    too much time, or a cursor that is malformed, expired or someone else's (context.reason); CWM-2005 no such
    stored result, or it expired; CWM-4002 the store cannot be read (retryable).
    """
    queries = {
        QueryKind.JMESPATH: jmespath,
        QueryKind.JSON_POINTER: json_pointer,
        QueryKind.REGEX: regex,
        QueryKind.SEARCH: search,
        QueryKind.HEAD: head,
        QueryKind.TAIL: tail,
        QueryKind.COUNT: count,
    }
    query = _query(queries, context)
    answer = await caller.services.query_result(
        caller.principal, handle, query, part=part, cursor=cursor, budget_tokens=max_tokens
    )
    return _with_text(_answer(answer, query))


def result_tools() -> list[FunctionTool]:
    return [
        tool(result_read, "Read a stored result", schemas_results.ResultPage, read_only=True),
        tool(result_query, "Query a stored result", schemas_results.QueryAnswer, read_only=True),
    ]


def _query(queries: Mapping[QueryKind, str | int | None], context: int) -> Query:
    choices = [(kind, argument) for kind, argument in queries.items() if argument is not None]
    if len(choices) != 1:
        raise InvalidParameterError(
            f"Give exactly one of {', '.join(queries)}.",
            field="query",
            given=[str(kind) for kind, _ in choices],
        )
    ((kind, argument),) = choices
    return Query(kind, argument, context)


def _with_text(fields: Mapping[str, Any]) -> ToolResult:
    """A result whose first text item is the text itself, unescaped, and whose second has the other fields as JSON."""
    other_fields = {name: value for name, value in fields.items() if name != "text"}
    return ToolResult(
        content=[
            TextContent(type="text", text=fields["text"]),
            TextContent(type="text", text=json.dumps(other_fields)),
        ],
        structured_content=dict(fields),
    )


def _page(stored_page: Page) -> schemas_results.ResultPage:
    stored = stored_page.stored
    fields: schemas_results.ResultPage = {
        "success": True,
        "handle": stored_page.result.handle,
        "part": stored_page.part,
        "parts": len(stored_page.result.parts),
        "kind": stored.kind.value,
        "media_type": stored.media_type,
        "page": stored_page.page,
        "pages": stored_page.pages,
        "encoding": "base64" if stored.kind is PartKind.BINARY else "utf-8",
        "text": stored_page.text,
        "start_byte": stored_page.start,
        "end_byte": stored_page.end,
        "size_bytes": stored.size,
        "tokens": stored_page.tokens,
        "expires_at": moment(stored_page.result.expires_at),
    }
    if stored_page.next_cursor is not None:
        fields["next_cursor"] = stored_page.next_cursor
    return fields


def _answer(answer: AnswerPage, query: Query) -> schemas_results.QueryAnswer:
    fields: schemas_results.QueryAnswer = {
        "success": True,
        "handle": answer.result.handle,
        "part": answer.part,
        "query": query.kind.value,
        "text": answer.text,
        "total": answer.total,
        "complete": answer.complete,
        "truncated": answer.next_cursor is not None,
        "size_bytes": answer.size,
        "tokens": answer.tokens,
    }
    if answer.next_cursor is not None:
        fields["next_cursor"] = answer.next_cursor
    return fields
