"""The answers of the tools on stored results."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from cwm.transport.mcp.contract.schemas import Timestamp


class ResultPage(TypedDict):
    success: bool
    handle: str
    part: Annotated[int, Field(description="Which part of the result this is of, from 0")]
    parts: Annotated[int, Field(description="Parts that the result has")]
    kind: Literal["json", "text", "binary"]
    media_type: str
    page: Annotated[int, Field(description="The page it begins in, from 1")]
    pages: Annotated[int, Field(description="Pages of this part")]
    encoding: Annotated[Literal["utf-8", "base64"], Field(description="base64 where the part is binary")]
    text: Annotated[str, Field(description="These bytes of the part, and nothing else")]
    start_byte: Annotated[int, Field(description="Where in the part it begins")]
    end_byte: Annotated[int, Field(description="Where in the part it ends, exclusive")]
    size_bytes: Annotated[int, Field(description="Of the whole part")]
    tokens: Annotated[int, Field(description="What the text takes in a context window")]
    expires_at: Annotated[Timestamp, Field(description="When the stored result is deleted")]
    next_cursor: NotRequired[
        Annotated[str, Field(description="Reads on after this; left out at the end of the result")]
    ]


class QueryAnswer(TypedDict):
    success: bool
    handle: str
    part: int
    query: Literal["jmespath", "json_pointer", "regex", "search", "head", "tail", "count"]
    text: Annotated[
        str,
        Field(
            description="The answer, or a piece of it. regex and search: one match a line, 'line:text', "
            "'line-text' around it, 'line:byte:…text…' in long lines"
        ),
    ]
    total: Annotated[int, Field(description="Matches, items of the answer, lines of the part, or the count")]
    complete: Annotated[bool, Field(description="False when there are more matches than are looked for")]
    truncated: Annotated[bool, Field(description="There is more of the answer: see next_cursor")]
    size_bytes: Annotated[int, Field(description="Of the whole answer")]
    tokens: Annotated[int, Field(description="What the text takes in a context window")]
    next_cursor: NotRequired[
        Annotated[str, Field(description="The same query with it as cursor goes on after this")]
    ]
