"""The answer of window_status, for a window or a session."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from cwm.transport.mcp.contract.schemas.scalars import (
    Durability,
    Retention,
    SessionState,
    Share,
    Tier,
    Timestamp,
)
from cwm.transport.mcp.contract.schemas.visibility import Visibility


class KvCache(TypedDict):
    block_count: int
    total_size_bytes: int
    storage_tier: NotRequired[Annotated[Tier, Field(description="Left out while no tier holds a block")]]
    hit_rate: NotRequired[
        Annotated[
            Share, Field(description="Share of the blocks that some tier holds now; left out if unknown")
        ]
    ]
    tiers: NotRequired[Annotated[dict[str, int], Field(description="Number of blocks in each tier now")]]


class Timestamps(TypedDict):
    created_at: Timestamp
    updated_at: Timestamp
    frozen_at: Timestamp | None


class Block(TypedDict):
    hash: Annotated[str, Field(description="LMCache's chunk hash, in hex")]
    size_bytes: int
    storage_tier: NotRequired[
        Annotated[Tier, Field(description="The nearest tier that holds it; left out if none does")]
    ]
    tiers: Annotated[list[Tier], Field(description="All tiers that hold it now")]


class CanaryFacts(TypedDict):
    places: int
    origin: Annotated[
        Literal["computed", "inherited", "unproven"],
        Field(description="The KV it was recorded on: computed, loaded with a good verdict, or neither"),
    ]


class Status(TypedDict):
    type: Literal["session", "window"]
    id: str
    state: SessionState
    model: str
    token_count: int
    kv_cache: KvCache
    timestamps: Timestamps
    owner: str
    visibility: Visibility
    blocks: NotRequired[list[Block]]
    description: NotRequired[str]
    tags: NotRequired[list[str]]
    session_id: NotRequired[Annotated[str, Field(description="For a window: the session that was frozen")]]
    durability: NotRequired[Durability]
    retention: NotRequired[Retention]
    expires_at: NotRequired[Annotated[Timestamp, Field(description="When the window will be deleted")]]
    proven_at: NotRequired[Annotated[Timestamp, Field(description="When all its blocks were last read back")]]
    canary: NotRequired[Annotated[CanaryFacts, Field(description="What a thaw is compared with")]]
    failure: NotRequired[Annotated[str, Field(description="Why the blocks could not be stored")]]
    warning: NotRequired[
        Annotated[str, Field(description="Why no blocks are stored, although the window is durable")]
    ]
    metadata: NotRequired[
        Annotated[dict[str, Any], Field(description="For a session: what session_create was given")]
    ]
    parent_window: NotRequired[
        Annotated[str | None, Field(description="The window it was cloned, continued or thawed from")]
    ]
    branch_token: NotRequired[
        Annotated[int, Field(description="Number of leading tokens that it shares with that window")]
    ]
