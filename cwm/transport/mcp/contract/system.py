"""Tools on CWM itself: cache statistics, health, metrics."""

from __future__ import annotations

from typing import Annotated

from fastmcp.tools import FunctionTool, ToolResult
from mcp_types import TextContent
from pydantic import Field

from cwm.transport.mcp.contract import inputs, render, schemas
from cwm.transport.mcp.contract.tool import tool
from cwm.transport.mcp.mcp_server import CALLER, Caller


async def cache_stats(caller: Caller = CALLER) -> schemas.CacheStats:
    """See how much the KV cache holds and how often it is hit.

    kv_store counts the distinct blocks of your windows and one copy of their bytes; its hit_rate, and all of
    vllm, are the engine's own totals since it started. Rates are shares from 0 to 1. An engine that does
    not answer shows as connected: false with zeros. results counts the tokens of tool results that passed this
    gateway since it started, and what its budgets saved of them.

    Errors: CWM-4002 the registry cannot be read (retryable).
    """
    stats = await caller.services.inspect.cache_stats(caller.principal)
    return render.cache_stats(stats, caller.services.delivery.savings)


async def health_check(
    component: Annotated[
        str | None,
        Field(
            description="Only this component: kv_store, coordinator, vllm, registry, shared_store or upstream:<name>"
        ),
    ] = None,
    caller: Caller = CALLER,
) -> schemas.HealthStatus:
    """Check whether everything CWM needs is there and answers, right now.

    unhealthy: the engine or the registry is down, most tools fail. degraded: the cache is missing, thaws
    compute instead of load. latency_ms is how long each component took to answer.

    Errors: CWM-1003 no such component.
    """
    return render.health(await caller.services.inspect.health(component))


async def get_metrics_data(
    format: Annotated[  # noqa: A002 - the contract's name
        inputs.MetricsFormat, Field(description="prometheus: text format; json: one object per series")
    ] = "prometheus",
    caller: Caller = CALLER,
) -> ToolResult:
    """Read what this gateway counted and timed: operations, durations, prompt tokens, its own process.

    The series of /metrics without the buckets of histograms; their names say the unit. With prometheus the result's text is the text
    format itself; with json it is the list of series with name, type, value and labels.

    Errors: CWM-1003 unknown format.
    """
    await caller.metrics.look()
    if format == "prometheus":
        text = caller.metrics.text(buckets=False)
        told: schemas.MetricsData = {"success": True, "format": format, "text": text}
        return ToolResult(content=[TextContent(type="text", text=text)], structured_content=told)
    listed: list[schemas.Metric] = [
        {"name": s.name, "type": s.type, "value": s.value, "labels": dict(s.labels)}
        for s in caller.metrics.samples(buckets=False)
    ]
    result: schemas.MetricsData = {"success": True, "format": format, "metrics": listed}
    return ToolResult(structured_content=result)


def system_tools() -> list[FunctionTool]:
    return [
        tool(cache_stats, "Cache statistics", schemas.CacheStats, read_only=True),
        tool(health_check, "Check health", schemas.HealthStatus, read_only=True),
        tool(get_metrics_data, "Read metrics", schemas.MetricsData, read_only=True),
    ]
