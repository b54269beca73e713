"""The answers of the tools for windows."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from cwm.transport.mcp.contract.schemas.proof import Verdict, VerificationEvidence
from cwm.transport.mcp.contract.schemas.scalars import Durability, Retention, SessionState, Tier, Timestamp
from cwm.transport.mcp.contract.schemas.sessions import Generated
from cwm.transport.mcp.contract.schemas.visibility import Visibility


class Frozen(TypedDict):
    success: bool
    window_name: str
    block_count: Annotated[
        int, Field(description="Number of stored blocks; each is one LMCache chunk of tokens")
    ]
    total_size_bytes: Annotated[int, Field(description="Size of one copy of the stored blocks")]
    token_count: int
    storage_tier: NotRequired[
        Annotated[
            Tier,
            Field(
                description="Lower tier that holds the blocks: redis, else disk; cpu if neither. "
                "Left out while no block is stored"
            ),
        ]
    ]
    session_id: str
    durability: Annotated[
        Durability,
        Field(description="durable: proven to be stored. pending: window_status shows when it is"),
    ]
    freeze_time_ms: int
    tiers: Annotated[
        dict[str, int], Field(description="Number of blocks in each tier when they were proven to be stored")
    ]
    visibility: Visibility
    warning: NotRequired[str]


class EngineChange(TypedDict):
    field: str
    frozen: str
    now: str


class Alternatives(TypedDict):
    load: float | None
    recompute: float | None


class ThawPlan(TypedDict):
    decision: Annotated[
        Literal["load", "recompute", "partial"],
        Field(description="partial: some blocks are gone, or computing them is faster than loading them"),
    ]
    predicted_ms: Annotated[float | None, Field(description="null if nothing comparable was measured yet")]
    actual_ms: Annotated[float, Field(description="Sum of prefetch_ms and engine_ms")]
    alternatives: Annotated[
        Alternatives, Field(description="Predicted times to load everything and to compute everything")
    ]


class Receipt(TypedDict):
    tokens_restored: Annotated[int, Field(description="Tokens whose KV was loaded, as the engine reports it")]
    tokens_recomputed: Annotated[int, Field(description="Tokens whose KV the engine computed again")]
    tokens_by_tier: Annotated[
        dict[str, int],
        Field(description="Restored tokens by the tier they came from; gpu is the engine's own cache"),
    ]
    blocks_found: int
    blocks_total: int
    prefetch_ms: float
    engine_ms: float
    plan: Annotated[
        ThawPlan, Field(description="What the gateway chose to do, from the speeds of earlier thaws")
    ]
    engine_changes: Annotated[
        list[EngineChange],
        Field(
            description="How the engine differs from the one that froze the window; if it does, the stored KV is not used"
        ),
    ]
    verification: VerificationEvidence


class Thawed(TypedDict):
    success: bool
    session_id: str
    window_name: str
    token_count: int
    restoration_time_ms: Annotated[
        int,
        Field(description="Time until the engine had the context; receipt.verification.verify_ms is extra"),
    ]
    partial: Annotated[bool, Field(description="true if some blocks were gone and were computed again")]
    warning: NotRequired[str]
    verification: Annotated[
        Verdict,
        Field(description="Whether the restored KV is what was frozen; see receipt.verification"),
    ]
    receipt: Receipt
    visibility: Visibility
    continuation: NotRequired[Generated]
    next_step: NotRequired[Annotated[str, Field(description="How to go on, if nothing was continued yet")]]


class WindowItem(TypedDict):
    name: str
    description: str
    tags: list[str]
    model: str
    token_count: int
    size_bytes: int
    created_at: Timestamp
    parent_window: str | None
    updated_at: Timestamp
    session_id: Annotated[str, Field(description="The session that was frozen")]
    durability: Durability
    storage_tier: NotRequired[Annotated[Tier, Field(description="Left out while no block is stored")]]
    retention: Retention
    expires_at: NotRequired[Timestamp]
    owner: str
    visibility: Visibility


class WindowPage(TypedDict):
    windows: list[WindowItem]
    total: Annotated[int, Field(description="Number of matching windows on all pages")]
    has_more: bool
    total_is_at_least: NotRequired[
        Annotated[bool, Field(description="true if more windows match than could be counted in time")]
    ]
    next_cursor: NotRequired[Annotated[str, Field(description="Pass as cursor for the next page")]]


class Cloned(TypedDict):
    success: bool
    source_window: str
    target_window: str
    shared_blocks: Annotated[
        int, Field(description="Number of blocks that both windows share; none is copied")
    ]
    token_count: int
    visibility: Visibility


class Deleted(TypedDict):
    success: bool
    window_name: str
    blocks_deleted: Annotated[
        int, Field(description="Number of deleted blocks: those that nothing else referred to")
    ]
    space_freed_bytes: Annotated[int, Field(description="Size of one copy of those blocks")]
    session_id: NotRequired[
        Annotated[str, Field(description="The session that was frozen, which stays; left out if it is gone")]
    ]
    session_state: NotRequired[
        Annotated[SessionState, Field(description="expired once its last window is deleted")]
    ]
    warning: NotRequired[str]


class Renamed(TypedDict):
    success: bool
    window_name: Annotated[str, Field(description="The name that it has now")]
    session_id: str
    token_count: int
