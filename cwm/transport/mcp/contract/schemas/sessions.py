"""The answers of the tools for sessions."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from cwm.transport.mcp.contract.schemas.scalars import SessionState, Timestamp
from cwm.transport.mcp.contract.schemas.visibility import Visibility


class Generated(TypedDict):
    success: bool
    session_id: str
    text: str
    finish_reason: Annotated[
        str | None,
        Field(description="stop, length, … as the engine reports it; null if the answer was cut off"),
    ]
    token_count: Annotated[int, Field(description="Tokens of the session's context after this turn")]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: Annotated[int, Field(description="Prompt tokens whose KV was reused")]


class SessionDeleted(TypedDict):
    success: bool
    session_id: str


class SessionUnfrozen(TypedDict):
    success: bool
    session_id: str
    state: SessionState


class SessionMerged(TypedDict):
    success: bool
    session_id: str
    merged_session: Annotated[str, Field(description="Id of the session that ended")]
    turn_count: Annotated[int, Field(description="Turns that session_id has now")]
    token_count: Annotated[int, Field(description="Tokens of its current turn")]


class SessionItem(TypedDict):
    id: str
    model: str
    state: SessionState
    created_at: Timestamp
    token_count: int
    updated_at: Timestamp
    owner: str
    visibility: Visibility
    thawed_from: NotRequired[str]


class SessionList(TypedDict):
    success: bool
    sessions: list[SessionItem]
    count: Annotated[int, Field(description="Number of sessions in this answer")]
    has_more: bool
    next_cursor: NotRequired[Annotated[str, Field(description="Pass as cursor for the next page")]]


class SessionCreated(TypedDict):
    success: bool
    session_id: str
    model: str
    state: SessionState
    created_at: Timestamp
    visibility: Visibility
