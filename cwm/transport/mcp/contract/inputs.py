"""The fields that tools take: types and limits."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema
from typing_extensions import TypedDict

from cwm.domain.names import (
    MAX_DESCRIPTION_CHARS,
    MAX_TAGS,
    SESSION_ID_PATTERN,
    TAG_PATTERN,
    TURN_PATTERN,
    TURN_TAG_PATTERN,
    WINDOW_NAME_PATTERN,
)
from cwm.domain.visibility import VISIBILITY_PATTERN

MAX_NEW_TOKENS: Final = 32_768
MAX_CONTINUATION_CHARS: Final = 10_000
MAX_METADATA_BYTES: Final = 16 * 1024
MAX_TOOLS_BYTES: Final = 64 * 1024
MAX_TTL_SECONDS: Final = 100 * 365 * 86_400

_RFC3339: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def _moment(value: Any) -> datetime:
    message = "must be an RFC 3339 date-time with a UTC offset, such as 2026-01-22T10:30:00Z"
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError(message)
    try:
        return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(message) from None


def _at_most(limit: int) -> AfterValidator:
    def small(value: Any) -> Any:
        if len(json.dumps(value).encode()) > limit:
            raise ValueError(f"must be at most {limit} bytes of JSON")
        return value

    return AfterValidator(small)


AgentSession: TypeAlias = Annotated[str, Field(min_length=1, max_length=128)]
SessionId: TypeAlias = Annotated[str, Field(pattern=SESSION_ID_PATTERN)]
# A name of cwm.yaml, or one and an IPv6 address.
Engine: TypeAlias = Annotated[str, Field(min_length=1, max_length=80)]
Deployment: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
TurnId: TypeAlias = Annotated[str, Field(pattern=TURN_PATTERN)]
TurnTag: TypeAlias = Annotated[str, Field(pattern=TURN_TAG_PATTERN)]
WindowName: TypeAlias = Annotated[str, Field(pattern=WINDOW_NAME_PATTERN)]
Description: TypeAlias = Annotated[str, Field(max_length=MAX_DESCRIPTION_CHARS)]
Tag: TypeAlias = Annotated[str, Field(pattern=TAG_PATTERN)]
# The first wrong element is told, and a hundred thousand more are not looked at.
Tags: TypeAlias = Annotated[list[Tag], Field(fail_fast=True, max_length=MAX_TAGS)]
TagWords: TypeAlias = Annotated[list[str], Field(fail_fast=True)]
Moment: TypeAlias = Annotated[
    datetime, BeforeValidator(_moment), WithJsonSchema({"type": "string", "format": "date-time"})
]
Continuation: TypeAlias = Annotated[str, Field(max_length=MAX_CONTINUATION_CHARS)]
Model: TypeAlias = Annotated[str, Field(min_length=1, max_length=512)]
Metadata: TypeAlias = Annotated[dict[str, Any], _at_most(MAX_METADATA_BYTES)]
Temperature: TypeAlias = Annotated[float, Field(ge=0, le=2)]
TopP: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Seed: TypeAlias = Annotated[int, Field(ge=0, le=2**53 - 1)]
Stop: TypeAlias = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=256)]], Field(fail_fast=True, max_length=16)
]

Visibility: TypeAlias = Annotated[str, Field(pattern=VISIBILITY_PATTERN)]
TtlSeconds: TypeAlias = Annotated[int, Field(ge=1, le=MAX_TTL_SECONDS)]
Retention: TypeAlias = Literal["guaranteed", "best_effort"]
SortBy: TypeAlias = Literal["name", "created_at", "token_count", "size"]
SortOrder: TypeAlias = Literal["asc", "desc"]
StateFilter: TypeAlias = Literal["active", "frozen", "thawed", "expired"]
MetricsFormat: TypeAlias = Literal["prometheus", "json"]


class ChatMessage(TypedDict):
    """One chat message; other fields (tool_calls, tool_call_id, name) are passed to the chat template unchanged."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    role: Annotated[str, Field(min_length=1, max_length=64, description="system, user, assistant or tool")]
    content: NotRequired[
        Annotated[
            str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None,
            Field(description="Text, or a list of parts such as {type: text, text: …}"),
        ]
    ]


Messages: TypeAlias = Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)]
# Limited because the registry stores them with the session.
ChatTools: TypeAlias = Annotated[
    list[dict[str, Any]], Field(fail_fast=True, max_length=128), _at_most(MAX_TOOLS_BYTES)
]
