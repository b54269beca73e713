"""Converts statistics and health to the answers of tools."""

from __future__ import annotations

from cwm.ports.kv_tier import TierUsage
from cwm.services.health.inspect import CacheStats, Health
from cwm.services.results.savings import SavedTokens
from cwm.transport.mcp.contract.render.scalars import tier_name
from cwm.transport.mcp.contract.schemas import system as schemas


def cache_stats(stats: CacheStats, savings: SavedTokens) -> schemas.CacheStats:
    answer: schemas.CacheStats = {
        "success": True,
        "kv_store": {
            "total_blocks": stats.total_blocks,
            "total_bytes": stats.total_bytes,
            "hit_rate": stats.reused.restored_share,
        },
        "vllm": {
            "connected": stats.vllm_connected,
            "hit_rate": stats.reused.share,
            "cached_tokens": stats.reused.cached,
        },
        "results": {
            "had_tokens": savings.had,
            "delivered_tokens": savings.delivered,
            "read_later_tokens": savings.read_later,
            "saved_tokens": savings.saved,
            "previewed": savings.previewed,
            "not_kept": savings.unkept,
        },
    }
    if stats.engine is not None:
        answer["kv_store"]["tiers"] = [_tier_usage(usage) for usage in stats.engine.tiers]
        answer["engine"] = {
            "kv_hit_rate": stats.engine.kv_hit_rate,
            "prefix_hit_rate": stats.engine.prefix_hit_rate,
            "cached_tokens": stats.engine.cached_tokens,
        }
    return answer


def _tier_usage(usage: TierUsage) -> schemas.TierUsage:
    answer: schemas.TierUsage = {"tier": tier_name(usage.tier), "used_bytes": usage.used_bytes}
    if usage.capacity_bytes is not None:
        answer["capacity_bytes"] = usage.capacity_bytes
    return answer


def health(result: Health) -> schemas.HealthStatus:
    return {
        "success": True,
        "status": result.status.value,
        "uptime_seconds": result.uptime_seconds,
        "version": result.version,
        "components": [
            {
                "name": component.name,
                "status": component.status.value,
                "message": component.message,
                "latency_ms": component.latency_ms,
            }
            for component in result.components
        ],
    }
