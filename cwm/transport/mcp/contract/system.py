"""Tools about CWM itself: cache statistics, health, metrics."""

from __future__ import annotations

from typing import Annotated

from fastmcp.tools import FunctionTool, ToolResult
from mcp_types import TextContent
from pydantic import Field

from cwm.transport.mcp.contract import inputs
from cwm.transport.mcp.contract.render import system as render
from cwm.transport.mcp.contract.schemas import system as schemas
from cwm.transport.mcp.contract.tool import tool
from cwm.transport.mcp.mcp_server import CALLER, Caller


async def cache_stats(caller: Caller = CALLER) -> schemas.CacheStats:
    """See how much the KV cache holds and how often it is hit.

    All figures are of your tenant. kv_store counts the distinct blocks of your windows and the bytes of one copy
    of each. Rates, cached_tokens and results count what passed through this gateway since it started; rates are
    shares from 0 to 1. results tells how many tokens of tool results result budgets saved. vllm has connected:
    false if the engine does not answer. For admin of the gateway's own tenant, engine has the engine's totals of all
    tenants since its start, and kv_store.tiers what each tier holds.

    Errors: CWM-4002 the registry cannot be read (retryable).
    """
    stats = await caller.services.inspect.cache_stats(caller.principal)
    return render.cache_stats(stats, caller.services.delivery.savings.of(caller.principal.tenant))


async def health_check(
    component: Annotated[
        str | None,
        Field(
            description="Check only this component: kv_store, coordinator, vllm, registry, shared_store, engine:<name> or upstream:<name>"
        ),
    ] = None,
    caller: Caller = CALLER,
) -> schemas.HealthStatus:
    """Check now whether every component that CWM needs answers.

    unhealthy: the engine or the registry is down, and most tools fail. degraded: the cache is missing, and
    thaws compute KV instead of loading it. latency_ms is how long each component took to answer.

    Errors: CWM-1003 no such component.
    """
    return render.health(await caller.services.inspect.health(component, caller.principal))


async def get_metrics_data(
    format: Annotated[  # noqa: A002 - the contract's name
        inputs.MetricsFormat, Field(description="prometheus: text format; json: one object per series")
    ] = "prometheus",
    caller: Caller = CALLER,
) -> ToolResult:
    """Read this gateway's metrics: operations, durations, prompt tokens, its own process.

    These are the series of /metrics without histogram buckets; each name includes the unit. With prometheus
    the result's text is the Prometheus text format itself; with json it is the list of series with name,
    type, value and labels.

    Errors: CWM-1003 unknown format; CWM-9002 your tenant is not the gateway's own.
    """
    await caller.metrics.look()
    if format == "prometheus":
        text = caller.metrics.text(buckets=False)
        text_answer: schemas.MetricsData = {"success": True, "format": format, "text": text}
        return ToolResult(content=[TextContent(type="text", text=text)], structured_content=text_answer)
    series: list[schemas.Metric] = [
        {"name": s.name, "type": s.type, "value": s.value, "labels": dict(s.labels)}
        for s in caller.metrics.samples(buckets=False)
    ]
    answer: schemas.MetricsData = {"success": True, "format": format, "metrics": series}
    return ToolResult(structured_content=answer)


def system_tools() -> list[FunctionTool]:
    return [
        tool(cache_stats, "Cache statistics", schemas.CacheStats, read_only=True),
        tool(health_check, "Check health", schemas.HealthStatus, read_only=True),
        tool(get_metrics_data, "Read metrics", schemas.MetricsData, read_only=True),
    ]
