"""The answers of tools: exactly the fields of the contract, and CWM's additions.

Timestamps are RFC 3339 in UTC, sizes in bytes, durations in milliseconds unless the name says otherwise. A
field whose value is unknown is left out; a field is null only where the contract allows null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

Timestamp: TypeAlias = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Tier: TypeAlias = Literal["cpu", "disk", "redis"]
SessionState: TypeAlias = Literal["active", "frozen", "thawed", "expired"]
Durability: TypeAlias = Literal["pending", "durable", "failed"]
Health: TypeAlias = Literal["healthy", "degraded", "unhealthy"]
Retention: TypeAlias = Literal["guaranteed", "best_effort"]
Visibility: TypeAlias = Annotated[
    str, Field(description="Who may see it: private (its owner), workspace:<name> or tenant")
]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]


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


class VerificationEvidence(TypedDict):
    tokens_compared: int
    first_difference: Annotated[
        int | None, Field(description="Index of the first token that differed, from 0")
    ]
    deviation: Annotated[float | None, Field(description="Largest change of a log-probability, in nats")]
    reason: Annotated[str, Field(description="Why verification was skipped; else empty")]
    verify_ms: Annotated[float, Field(description="Duration of the replay")]
    recovered: Annotated[
        Literal["exact", "within_tolerance", "mismatch", "skipped"] | None,
        Field(description="After a mismatch: the result of the replay with the recomputed KV"),
    ]


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
        Literal["exact", "within_tolerance", "mismatch", "skipped"],
        Field(
            description="Whether the restored KV continued as it did at the freeze; see receipt.verification"
        ),
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


class Cloned(TypedDict):
    success: bool
    source_window: str
    target_window: str
    shared_blocks: Annotated[
        int, Field(description="Number of blocks that both windows share; none is copied")
    ]
    token_count: int
    visibility: Visibility


class Shared(TypedDict):
    success: bool
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


class TurnWords(TypedDict):
    old: str
    new: str


class TurnItem(TypedDict):
    id: str
    number: Annotated[int, Field(description="Counts the turns of a session in the order they were asked")]
    state: Literal["asked", "ended"]
    relation: NotRequired[
        Annotated[
            Literal["begins", "continues", "branches"],
            Field(description="How it came from its parent; begins: it has none"),
        ]
    ]
    parent: NotRequired[str]
    parent_at: NotRequired[Annotated[int, Field(description="Token at which it leaves its parent")]]
    line: NotRequired[
        Annotated[
            Literal["main", "side"],
            Field(
                description="main: of the conversation. side: a title, a summary, a sub-agent or another branch"
            ),
        ]
    ]
    prompt_tokens: NotRequired[int]
    token_count: NotRequired[Annotated[int, Field(description="Tokens of prompt and answer")]]
    cached_tokens: NotRequired[
        Annotated[int, Field(description="Prompt tokens that were not computed again")]
    ]
    compacts: NotRequired[
        Annotated[
            str,
            Field(description="The line's turn before, where this goes on from a summary; see turn_left_out"),
        ]
    ]
    missed: NotRequired[
        Annotated[
            Literal["evicted", "another_engine"],
            Field(
                description="The likely cause why cached_tokens is over a block less than parent_at; "
                "another_engine: or another salt"
            ),
        ]
    ]
    first_token_ms: NotRequired[
        Annotated[
            int,
            Field(
                description="Until the engine's first token arrived; of an answer in one piece, until that"
            ),
        ]
    ]
    router_decision: NotRequired[
        Annotated[str, Field(description="What the router in front of the engines says that it chose")]
    ]
    diverged_at: NotRequired[
        Annotated[int, Field(description="Message at which its request left those of the then current turn")]
    ]
    cause: NotRequired[
        Annotated[
            Literal[
                "system_text",
                "tools",
                "tool_order",
                "moved",
                "edited",
                "dropped",
                "inserted",
                "rendered",
                "repeated",
                "unrelated",
            ],
            Field(description="Why it left them; rendered: an answer came back with other words"),
        ]
    ]
    habit: NotRequired[
        Annotated[
            Literal["billing_block", "date", "git_status", "moved_reminder", "reordered_tools"],
            Field(description="What clients are known to change by themselves, if it left them by that"),
        ]
    ]
    habit_switch: NotRequired[
        Annotated[str, Field(description="The client's own setting or variable against its habit")]
    ]
    words: NotRequired[
        Annotated[
            TurnWords, Field(description="A few words of both messages around where they differ; in turn_log")
        ]
    ]
    author: str
    client: NotRequired[Annotated[str, Field(description="User agent of the client, as it says itself")]]
    asked_at: Timestamp
    ended_at: NotRequired[Timestamp]


class Renamed(TypedDict):
    success: bool
    window_name: Annotated[str, Field(description="The name that it has now")]
    session_id: str
    token_count: int


class TurnTag(TypedDict):
    tag: str
    turn: str
    session_id: str
    author: str
    created_at: Timestamp
    automatic: NotRequired[
        Annotated[bool, Field(description="true: set before a compaction; it goes with its session")]
    ]


class TurnTagged(TurnTag):
    success: bool


class TurnLog(TypedDict):
    success: bool
    session_id: NotRequired[str]
    current_turn: NotRequired[Annotated[str, Field(description="The turn whose context it is")]]
    origin: NotRequired[
        Annotated[
            str, Field(description="The turn of another session that it begins with: a branch or a thaw")
        ]
    ]
    turns: list[TurnItem]
    tags: Annotated[list[TurnTag], Field(description="Names of turns, the newest 1,000")]
    has_more: bool
    next_before: NotRequired[Annotated[int, Field(description="Pass as before for the next page")]]


class TurnShown(TypedDict):
    success: bool
    session_id: str
    turn: TurnItem
    messages: Annotated[
        list[dict[str, Any]],
        Field(
            description="In message_format; in OpenAI's a raw prompt has the role prompt, its answer completion"
        ),
    ]
    system: NotRequired[Annotated[str, Field(description="The system text, in Anthropic's format")]]
    token_ids: NotRequired[list[int]]
    warning: NotRequired[Annotated[str, Field(description="Why messages are missing")]]


class TurnFound(TypedDict):
    session_id: str
    turn: Annotated[str, Field(description="The turn that added the message; turn_show reads its context")]
    number: int
    role: str
    excerpt: Annotated[str, Field(description="Up to 240 characters of the message around the first word")]
    asked_at: str
    message: NotRequired[Annotated[dict[str, Any], Field(description="The whole, in OpenAI's format")]]


class TurnsFound(TypedDict):
    success: bool
    results: list[TurnFound]
    searched_messages: Annotated[int, Field(description="Messages that this call read")]
    next_cursor: NotRequired[Annotated[str, Field(description="Pass as cursor to search on")]]


class TurnDiff(TypedDict):
    success: bool
    left_tokens: int
    right_tokens: int
    common_tokens: Annotated[int, Field(description="Tokens from the beginning that are equal")]
    common_messages: int
    left_message: NotRequired[Annotated[dict[str, Any], Field(description="The first message that differs")]]
    right_message: NotRequired[dict[str, Any]]
    reused_tokens: Annotated[int, Field(description="Tokens of right that a switch from left reuses")]
    computed_tokens: Annotated[int, Field(description="Tokens of right that it computes")]
    thaw_ms: NotRequired[Annotated[float, Field(description="Predicted time of a thaw of right")]]


class LeftOutFact(TypedDict):
    kind: Literal["url", "path", "quotation", "identifier", "number", "name", "instruction"]
    text: str
    message: Annotated[int, Field(description="Position of the message that says it first")]
    role: Literal["user", "assistant"]


class LeftOut(TypedDict):
    success: bool
    turn: Annotated[str, Field(description="The turn that goes on from the summary")]
    before: Annotated[str, Field(description="The last turn of the whole conversation")]
    tag: NotRequired[Annotated[str, Field(description="Its tag: tag:NAME stands for before")]]
    fact_count: Annotated[int, Field(description="Facts that the conversation had")]
    left_out_count: int
    facts: Annotated[list[LeftOutFact], Field(description="Those that are gone, at most 500")]


class TurnMoved(TypedDict):
    success: bool
    session_id: str
    turn: str
    token_count: int


class TurnsDeleted(TypedDict):
    success: bool
    deleted_turns: int


class SessionCreated(TypedDict):
    success: bool
    session_id: str
    model: str
    state: SessionState
    created_at: Timestamp
    visibility: Visibility


class TierUsage(TypedDict):
    tier: Tier
    used_bytes: int
    capacity_bytes: NotRequired[int]


class KvStore(TypedDict):
    total_blocks: Annotated[int, Field(description="Number of distinct blocks that your windows refer to")]
    total_bytes: Annotated[int, Field(description="Size of one copy of each")]
    hit_rate: Annotated[
        Share,
        Field(
            description="Share of the tokens of your thaws that were restored, not computed, since this gateway's start"
        ),
    ]
    tiers: NotRequired[
        Annotated[
            list[TierUsage],
            Field(description="Of the whole engine, for admin; empty if LMCache does not answer"),
        ]
    ]


class Vllm(TypedDict):
    connected: bool
    hit_rate: Annotated[
        Share, Field(description="Share of your prompt tokens that vLLM took from caches, not computed")
    ]
    cached_tokens: Annotated[int, Field(description="Number of these tokens, since this gateway's start")]


class EngineTotals(TypedDict):
    """Of all tenants, since the engine's start."""

    kv_hit_rate: Annotated[
        Share, Field(description="Share of the tokens looked up in LMCache that were found")
    ]
    prefix_hit_rate: Annotated[Share, Field(description="Hit rate of vLLM's own prefix cache")]
    cached_tokens: Annotated[int, Field(description="Prompt tokens that vLLM took from caches, not computed")]


class ResultTokens(TypedDict):
    """Totals of your tenant in this gateway, since it started."""

    had_tokens: Annotated[int, Field(description="Number of tokens in all tool results")]
    delivered_tokens: Annotated[int, Field(description="Tokens of these that were delivered at once")]
    read_later_tokens: Annotated[
        int, Field(description="Tokens that result_read and result_query delivered later")
    ]
    saved_tokens: Annotated[int, Field(description="Tokens of these that reached no agent")]
    previewed: Annotated[
        int, Field(description="Number of results over budget, which were answered with a preview")
    ]
    not_kept: Annotated[int, Field(description="Number of these that could not be stored")]


class CacheStats(TypedDict):
    success: bool
    kv_store: KvStore
    vllm: Vllm
    results: ResultTokens
    engine: NotRequired[Annotated[EngineTotals, Field(description="For admin: the whole engine's")]]


class AgentSessionCreated(TypedDict):
    success: bool
    agent_session: str
    expires_in_seconds: float


class AgentSessionEnded(TypedDict):
    success: bool
    agent_session: str


class Component(TypedDict):
    name: str
    status: Health
    message: str
    latency_ms: float


class HealthStatus(TypedDict):
    success: bool
    status: Health
    uptime_seconds: float
    version: str
    components: list[Component]


class Metric(TypedDict):
    name: str
    type: str
    value: float
    labels: dict[str, str]


class MetricsData(TypedDict):
    """Has ``text`` with format=prometheus, ``metrics`` with format=json."""

    success: bool
    format: Literal["prometheus", "json"]
    text: NotRequired[str]
    metrics: NotRequired[list[Metric]]


class EngineInfo(TypedDict):
    name: str
    answers: bool
    since: NotRequired[Annotated[Timestamp, Field(description="When it went or came back")]]
    reason: NotRequired[Annotated[str, Field(description="Why it does not answer")]]
    deployments: Annotated[
        dict[str, str], Field(description="The digest of what KV depends on, by each served model")
    ]
    running: Annotated[int, Field(description="Requests that it works on now")]
    sessions: int
    draining_since: NotRequired[Timestamp]


class EngineList(TypedDict):
    success: bool
    engines: list[EngineInfo]


class MoveCanary(TypedDict):
    result: Literal["exact", "within_tolerance", "skipped"]
    decoded_on: NotRequired[
        Annotated[
            Literal["source", "window"],
            Field(description="The canary is the source's own, or that of a window with the same tokens"),
        ]
    ]
    tokens_compared: int
    reason: NotRequired[Annotated[str, Field(description="Why there was none")]]


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
    moved: Annotated[int, Field(description="Sessions of all tenants")]
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
