"""The published contract of the ten tools, as data: what a client may send, and what it gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

SESSION_ID: Final = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
VISIBILITY: Final = {"type": "string", "pattern": "^(private|tenant|workspace:[a-zA-Z0-9_.-]{1,64})$"}
STATES: Final = ["active", "frozen", "thawed", "expired"]

SEED: Final[dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_name("seed.json").read_bytes())
"""The input schema of each tool in the first contract, without its descriptions."""
OPTIONAL_SINCE: Final = {("window_freeze", "session_id"): "0080"}
"""Fields that the first contract requires and CWM does not, by the decision that says why."""

# tool: (required fields, fields)
INPUTS: Final[dict[str, tuple[list[str], dict[str, Any]]]] = {
    tool: (
        [name for name in schema["required"] if (tool, name) not in OPTIONAL_SINCE],
        schema["properties"],
    )
    for tool, schema in SEED.items()
}

# Ours on top.
ADDED_INPUTS: Final[dict[str, dict[str, Any]]] = {
    "window_freeze": {
        "wait": {"type": "boolean", "default": True},
        "canary": {"type": "boolean", "default": True},
        "retention": {
            "type": "string",
            "enum": ["guaranteed", "best_effort"],
            "default": "guaranteed",
        },
        "ttl_seconds": {"type": "integer", "minimum": 1, "maximum": 3153600000},
        "turn": {"type": "string", "pattern": "^(tag:)?[a-zA-Z0-9._-]{1,64}$"},
        "keep_session": {"type": "boolean"},
        "visibility": VISIBILITY,
    },
    "window_clone": {
        "retention": {"type": "string", "enum": ["guaranteed", "best_effort"]},
        "ttl_seconds": {"type": "integer", "minimum": 1, "maximum": 3153600000},
        "visibility": VISIBILITY,
    },
    "window_list": {"cursor": {"type": "string"}, "visibility": VISIBILITY},
    "session_list": {"cursor": {"type": "string"}, "visibility": VISIBILITY},
    "window_thaw": {
        "accept_template": {"type": "boolean", "default": False},
        "verify": {"type": "boolean", "default": True},
        "visibility": VISIBILITY,
        "as_session": SESSION_ID,
    },
}

# tool: dotted field of the answer -> its type, "[]" for items of an array, "?" for one that can be null
OUTPUTS: Final[dict[str, dict[str, str]]] = {
    "window_freeze": {
        "success": "boolean",
        "window_name": "string",
        "block_count": "integer",
        "total_size_bytes": "integer",
        "token_count": "integer",
        "storage_tier": "string",
    },
    "window_thaw": {
        "success": "boolean",
        "session_id": "string",
        "window_name": "string",
        "token_count": "integer",
        "restoration_time_ms": "integer",
        "partial": "boolean",
        "warning": "string",
    },
    "window_list": {
        "windows": "array",
        "windows[].name": "string",
        "windows[].description": "string",
        "windows[].tags": "array",
        "windows[].tags[]": "string",
        "windows[].model": "string",
        "windows[].token_count": "integer",
        "windows[].size_bytes": "integer",
        "windows[].created_at": "string",
        "windows[].parent_window": "string?",
        "total": "integer",
        "has_more": "boolean",
    },
    "window_status": {
        "type": "string",
        "id": "string",
        "state": "string",
        "model": "string",
        "token_count": "integer",
        "kv_cache": "object",
        "kv_cache.block_count": "integer",
        "kv_cache.total_size_bytes": "integer",
        "kv_cache.storage_tier": "string",
        "kv_cache.hit_rate": "number",
        "timestamps": "object",
        "timestamps.created_at": "string",
        "timestamps.updated_at": "string",
        "timestamps.frozen_at": "string?",
        "blocks": "array",
        "blocks[].hash": "string",
        "blocks[].size_bytes": "integer",
        "blocks[].storage_tier": "string",
    },
    "window_clone": {
        "success": "boolean",
        "source_window": "string",
        "target_window": "string",
        "shared_blocks": "integer",
    },
    "window_delete": {
        "success": "boolean",
        "window_name": "string",
        "blocks_deleted": "integer",
        "space_freed_bytes": "integer",
    },
    "session_list": {
        "success": "boolean",
        "sessions": "array",
        "sessions[].id": "string",
        "sessions[].model": "string",
        "sessions[].state": "string",
        "sessions[].created_at": "string",
        "sessions[].token_count": "integer",
        "count": "integer",
    },
    "cache_stats": {
        "success": "boolean",
        "kv_store": "object",
        "kv_store.total_blocks": "integer",
        "kv_store.total_bytes": "integer",
        "kv_store.hit_rate": "number",
        "vllm": "object",
        "vllm.connected": "boolean",
        "vllm.hit_rate": "number",
        "vllm.cached_tokens": "integer",
    },
    "health_check": {
        "success": "boolean",
        "status": "string",
        "uptime_seconds": "number",
        "version": "string",
        "components": "array",
        "components[].name": "string",
        "components[].status": "string",
        "components[].message": "string",
        "components[].latency_ms": "number",
    },
    "get_metrics_data": {
        "success": "boolean",
        "metrics": "array",
        "metrics[].name": "string",
        "metrics[].type": "string",
        "metrics[].value": "number",
        "metrics[].labels": "object",
    },
}

# tool: field of the answer -> all its values
OUTPUT_ENUMS: Final[dict[str, dict[str, list[str]]]] = {
    "window_freeze": {"storage_tier": ["cpu", "disk", "redis"]},
    "window_status": {"type": ["session", "window"], "state": STATES},
    "health_check": {"status": ["healthy", "degraded", "unhealthy"]},
}

MOMENTS: Final = {
    "window_list": ["windows[].created_at"],
    "window_status": ["timestamps.created_at", "timestamps.updated_at", "timestamps.frozen_at"],
    "session_list": ["sessions[].created_at"],
}

RESOURCES: Final = {"cwm://windows", "cwm://sessions", "cwm://stats", "health://status"}
