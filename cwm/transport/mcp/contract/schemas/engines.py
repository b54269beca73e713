"""The answers of the tools for engines."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from cwm.transport.mcp.contract.schemas.proof import Compared, Verdict
from cwm.transport.mcp.contract.schemas.scalars import Timestamp


class EngineInfo(TypedDict):
    name: str
    answers: bool
    since: NotRequired[Annotated[Timestamp, Field(description="When it went or came back")]]
    reason: NotRequired[Annotated[str, Field(description="Why it does not answer")]]
    deployments: Annotated[
        dict[str, str], Field(description="The digest of what KV depends on, by each served model")
    ]
    running: NotRequired[
        Annotated[int, Field(description="Requests that it works on now; left out if others' are among them")]
    ]
    sessions: int
    draining_since: NotRequired[Timestamp]


class EngineList(TypedDict):
    success: bool
    engines: list[EngineInfo]


class MoveCanary(Compared):
    result: Verdict
    decoded_on: NotRequired[
        Annotated[
            Literal["source", "window"],
            Field(
                description="The canary is a look at the source's own KV, or that of a window with the same tokens"
            ),
        ]
    ]
    reason: NotRequired[Annotated[str, Field(description="Why there is none, or why it is not certain")]]


class SessionMoved(TypedDict):
    success: bool
    session_id: str
    source: NotRequired[Annotated[str, Field(description="Left out if it is not known")]]
    target: str
    source_answered: bool
    token_count: int
    tokens_restored: Annotated[int, Field(description="Tokens whose KV the target loaded")]
    tokens_recomputed: Annotated[int, Field(description="The others; at least the tail after the last block")]
    tokens_by_tier: dict[str, int]
    blocks_found: int
    blocks_total: int
    canary: MoveCanary
    move_ms: int


class SessionStayed(TypedDict):
    session_id: str
    code: str
    message: str


class EngineDrained(TypedDict):
    success: Annotated[bool, Field(description="false if sessions are left")]
    engine: str
    answers: bool
    draining_since: NotRequired[Timestamp]
    moved: Annotated[
        int, Field(description="Sessions: of all tenants, or of yours if that is not the gateway's own")
    ]
    to_compute: NotRequired[
        Annotated[
            int,
            Field(
                description="Sessions that go on at the new deployment of their model, which computes them"
            ),
        ]
    ]
    stayed: list[SessionStayed]
    stayed_elsewhere: int


class EngineUpgrade(TypedDict):
    success: bool
    model: str
    deployment: NotRequired[
        Annotated[str, Field(description="The new one; left out if no upgrade is under way")]
    ]
    since: NotRequired[Timestamp]
    engines: Annotated[
        dict[str, str], Field(description="The deployment of each engine that serves the model and answers")
    ]
    windows_done: Annotated[
        int, Field(description="Windows of all tenants whose KV the new deployment can use")
    ]
    windows_left: Annotated[int, Field(description="Those that are still to be frozen there again")]
