"""The answers of the tools for the cache, health and metrics."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from cwm.transport.mcp.contract.schemas.scalars import Health, Share, Tier


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
