"""The answers of the tools on stored results."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from cwm.transport.mcp.contract.schemas.scalars import Timestamp


class ResultPage(TypedDict):
    success: bool
    handle: str
    part: Annotated[int, Field(description="Number of the part that the page is from, from 0")]
    parts: Annotated[int, Field(description="Number of parts of the result")]
    kind: Literal["json", "text", "binary"]
    media_type: str
    page: Annotated[int, Field(description="Number of the page that the text begins in, from 1")]
    pages: Annotated[int, Field(description="Number of pages of this part")]
    encoding: Annotated[Literal["utf-8", "base64"], Field(description="base64 if the part is binary")]
    text: Annotated[str, Field(description="Exactly these bytes of the part")]
    start_byte: Annotated[int, Field(description="Offset in the part where the text begins")]
    end_byte: Annotated[int, Field(description="Offset in the part where the text ends, exclusive")]
    size_bytes: Annotated[int, Field(description="Size of the whole part")]
    tokens: Annotated[int, Field(description="What the text takes in a context window")]
    expires_at: Annotated[Timestamp, Field(description="When the stored result will be deleted")]
    next_cursor: NotRequired[
        Annotated[str, Field(description="Pass as cursor to read on; left out at the end of the result")]
    ]


class QueryAnswer(TypedDict):
    success: bool
    handle: str
    part: int
    query: Literal["jmespath", "json_pointer", "regex", "search", "head", "tail", "count"]
    text: Annotated[
        str,
        Field(
            description="The answer, or a piece of it. regex and search: one line per match, 'line:text'; "
            "'line-text' for lines around it; 'line:byte:…text…' in long lines"
        ),
    ]
    total: Annotated[
        int,
        Field(
            description="Number of matches, of items in the answer or of lines in the part; for count, the count"
        ),
    ]
    complete: Annotated[bool, Field(description="false if there are more matches than the query looks for")]
    truncated: Annotated[bool, Field(description="true if there is more of the answer: see next_cursor")]
    size_bytes: Annotated[int, Field(description="Size of the whole answer")]
    tokens: Annotated[int, Field(description="What the text takes in a context window")]
    next_cursor: NotRequired[
        Annotated[str, Field(description="Pass as cursor with the same query to continue")]
    ]
