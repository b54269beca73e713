"""One call of each CWM tool and its answer, as ``examples`` in the published schemas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_CREATED: Final = "2026-01-22T10:30:00Z"
_LATER: Final = "2026-01-22T10:45:12Z"
_HANDLE: Final = "r_0nxOIWOJcmZ8ekZYl1mfFz"
_CURSOR: Final = "AQ3vJkN0bGlzdGVkLWV4YW1wbGU="
_AGENT: Final = "as_4fJ9wQ2xLr8TzK1m"


@dataclass(frozen=True, slots=True)
class Example:
    """The arguments of a call, and the structured content of its answer."""

    arguments: Mapping[str, Any]
    answer: Mapping[str, Any]


def _in_scope(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {"success": True, "scope": "workspace:auth-refactor", **answer}


_ENTRY: Final = {
    "key": "files/package.json",
    "version": 17,
    "size_bytes": 74,
    "hash": "5f1d0c2b8a7e4963d0b6f1c84e27a95b3d6c8f01e2a4b5c6d7e8f90123456789",
    "priority": 5,
    "immutable": False,
    "author": "ann",
    "written_at": _CREATED,
    "expires_at": "2026-01-22T11:30:00Z",
}
_SNAPSHOT: Final = {"label": "before-refactor", "version": 17, "author": "ann", "taken_at": _LATER}
_VALUE: Final = {"name": "web", "dependencies": {"react": "19.1.0"}}
_SCOPE: Final = {"scope": "workspace:auth-refactor"}

_MOVED: Final = {"success": True, "session_id": "session_abc123", "turn": "turn_44af", "token_count": 4064}
_TURN: Final = {
    "id": "turn_7c1e",
    "number": 2,
    "state": "ended",
    "relation": "continues",
    "parent": "turn_44af",
    "parent_at": 4064,
    "line": "main",
    "prompt_tokens": 4080,
    "token_count": 4096,
    "cached_tokens": 4064,
    "first_token_ms": 38,
    "author": "ann",
    "asked_at": _CREATED,
    "ended_at": _LATER,
}

_TAG: Final = {
    "tag": "before-redis",
    "turn": "turn_44af",
    "session_id": "session_abc123",
    "author": "ann",
    "created_at": _LATER,
}

EXAMPLES: Final[Mapping[str, Example]] = {
    "window_freeze": Example(
        {
            "session_id": "session_abc123",
            "window_name": "my-coding-project",
            "description": "Working on the authentication module refactor",
            "tags": ["coding", "auth", "refactor"],
        },
        {
            "success": True,
            "window_name": "my-coding-project",
            "block_count": 256,
            "total_size_bytes": 15728640,
            "token_count": 8192,
            "storage_tier": "redis",
            "session_id": "session_abc123",
            "durability": "durable",
            "freeze_time_ms": 180,
            "tiers": {"cpu": 256, "redis": 256},
            "visibility": "tenant",
        },
    ),
    "window_thaw": Example(
        {
            "window_name": "my-coding-project",
            "continuation_prompt": "Let's continue working on the authentication module.",
        },
        {
            "success": True,
            "session_id": "thaw_my-coding-project_1769078712",
            "window_name": "my-coding-project",
            "token_count": 8192,
            "restoration_time_ms": 412,
            "partial": False,
            "verification": "exact",
            "receipt": {
                "tokens_restored": 8160,
                "tokens_recomputed": 32,
                "tokens_by_tier": {"redis": 8160},
                "blocks_found": 256,
                "blocks_total": 256,
                "prefetch_ms": 231.5,
                "engine_ms": 180.2,
                "plan": {
                    "decision": "load",
                    "predicted_ms": 405.0,
                    "actual_ms": 411.7,
                    "alternatives": {"load": 405.0, "recompute": 6120.0},
                },
                "engine_changes": [],
                "verification": {
                    "tokens_compared": 16,
                    "places_differing": 0,
                    "first_difference": None,
                    "deviation": 0.0,
                    "mean_deviation": 0.0,
                    "noise": None,
                    "compared_with": "canary",
                    "canary_origin": "computed",
                    "reason": "",
                    "verify_ms": 64.8,
                },
            },
            "visibility": "private",
            "continuation": {
                "success": True,
                "session_id": "thaw_my-coding-project_1769078712",
                "text": "Next we move the token check into middleware.",
                "finish_reason": "stop",
                "token_count": 8224,
                "prompt_tokens": 8212,
                "completion_tokens": 12,
                "cached_tokens": 8192,
            },
        },
    ),
    "window_list": Example(
        {"tags": ["coding"], "sort_by": "created_at", "sort_order": "desc", "limit": 5},
        {
            "windows": [
                {
                    "name": "my-coding-project",
                    "description": "Working on the authentication module refactor",
                    "tags": ["coding", "auth", "refactor"],
                    "model": "llama-3.1-8b",
                    "token_count": 8192,
                    "size_bytes": 15728640,
                    "created_at": _CREATED,
                    "parent_window": None,
                    "updated_at": _CREATED,
                    "session_id": "session_abc123",
                    "durability": "durable",
                    "storage_tier": "redis",
                    "retention": "guaranteed",
                    "owner": "ann",
                    "visibility": "tenant",
                }
            ],
            "total": 1,
            "has_more": False,
        },
    ),
    "window_status": Example(
        {"window_name": "my-coding-project"},
        {
            "type": "window",
            "id": "my-coding-project",
            "state": "frozen",
            "model": "llama-3.1-8b",
            "token_count": 8192,
            "kv_cache": {
                "block_count": 256,
                "total_size_bytes": 15728640,
                "storage_tier": "redis",
                "hit_rate": 1.0,
                "tiers": {"cpu": 12, "redis": 256},
            },
            "timestamps": {"created_at": _CREATED, "updated_at": _CREATED, "frozen_at": _CREATED},
            "description": "Working on the authentication module refactor",
            "tags": ["coding", "auth", "refactor"],
            "session_id": "session_abc123",
            "durability": "durable",
            "retention": "guaranteed",
            "parent_window": None,
            "proven_at": _LATER,
            "canary": {"places": 64, "origin": "computed"},
            "owner": "ann",
            "visibility": "tenant",
        },
    ),
    "window_clone": Example(
        {
            "source_window": "my-coding-project",
            "target_window": "my-coding-project-experiment",
            "description": "Trying alternative auth approach",
        },
        {
            "success": True,
            "source_window": "my-coding-project",
            "target_window": "my-coding-project-experiment",
            "shared_blocks": 256,
            "token_count": 8192,
            "visibility": "tenant",
        },
    ),
    "window_share": Example(
        {"window_name": "my-coding-project", "visibility": "workspace:auth-refactor"},
        {"success": True, "visibility": "workspace:auth-refactor"},
    ),
    "window_delete": Example(
        {"window_name": "old-experiment", "force": True},
        {
            "success": True,
            "window_name": "old-experiment",
            "blocks_deleted": 35,
            "space_freed_bytes": 12582912,
            "session_id": "session_def456",
            "session_state": "expired",
        },
    ),
    "session_create": Example(
        {"session_id": "session_abc123", "metadata": {"project": "auth", "ticket": 42}},
        {
            "success": True,
            "session_id": "session_abc123",
            "model": "llama-3.1-8b",
            "state": "active",
            "created_at": _CREATED,
            "visibility": "private",
        },
    ),
    "session_generate": Example(
        {
            "session_id": "session_abc123",
            "messages": [{"role": "user", "content": "Which modules use the old token format?"}],
            "max_tokens": 200,
            "temperature": 0,
        },
        {
            "success": True,
            "session_id": "session_abc123",
            "text": "Three modules still use it: login, refresh and the admin API.",
            "finish_reason": "stop",
            "token_count": 4096,
            "prompt_tokens": 4080,
            "completion_tokens": 16,
            "cached_tokens": 4064,
        },
    ),
    "session_list": Example(
        {"state_filter": "active"},
        {
            "success": True,
            "sessions": [
                {
                    "id": "session_abc123",
                    "model": "llama-3.1-8b",
                    "state": "active",
                    "created_at": _CREATED,
                    "token_count": 4096,
                    "updated_at": _LATER,
                    "owner": "ann",
                    "visibility": "private",
                }
            ],
            "count": 1,
            "has_more": False,
        },
    ),
    "window_rename": Example(
        {"window_name": "auto_session_abc123_7", "new_name": "before-redis"},
        {
            "success": True,
            "window_name": "before-redis",
            "session_id": "session_abc123",
            "token_count": 4096,
        },
    ),
    "turn_log": Example(
        {"session_id": "session_abc123", "limit": 2},
        {
            "success": True,
            "session_id": "session_abc123",
            "current_turn": "turn_7c1e",
            "turns": [
                {
                    "id": "turn_9b20",
                    "number": 3,
                    "state": "ended",
                    "relation": "begins",
                    "line": "side",
                    "prompt_tokens": 52,
                    "token_count": 60,
                    "cached_tokens": 0,
                    "first_token_ms": 52,
                    "author": "ann",
                    "client": "OpenAI/Python 3.57",
                    "asked_at": _LATER,
                    "ended_at": _LATER,
                },
                _TURN,
            ],
            "tags": [_TAG],
            "has_more": True,
            "next_before": 2,
        },
    ),
    "turn_show": Example(
        {"window_name": "my-coding-project"},
        {
            "success": True,
            "session_id": "session_abc123",
            "turn": _TURN,
            "messages": [
                {"role": "user", "content": "Which modules use the old token format?"},
                {"role": "assistant", "content": "Three modules still use it."},
            ],
        },
    ),
    "turn_search": Example(
        {"query": "token format"},
        {
            "success": True,
            "results": [
                {
                    "session_id": "session_abc123",
                    "turn": "turn_7c1e",
                    "number": 2,
                    "role": "user",
                    "excerpt": "Which modules use the old token format?",
                    "asked_at": _LATER,
                }
            ],
            "searched_messages": 214,
        },
    ),
    "turn_diff": Example(
        {"left": "session:session_abc123", "right": "window:my-coding-project"},
        {
            "success": True,
            "left_tokens": 4096,
            "right_tokens": 4080,
            "common_tokens": 4032,
            "common_messages": 6,
            "left_message": {"role": "user", "content": "Use the new format."},
            "right_message": {"role": "user", "content": "Keep the old format."},
            "reused_tokens": 4032,
            "computed_tokens": 48,
            "thaw_ms": 210.5,
        },
    ),
    "turn_left_out": Example(
        {"session_id": "session_abc123"},
        {
            "success": True,
            "turn": "turn_9b20",
            "before": "turn_44af",
            "tag": "session_abc123.before-compaction-14",
            "fact_count": 31,
            "left_out_count": 1,
            "facts": [{"kind": "number", "text": "4711", "message": 3, "role": "user"}],
        },
    ),
    "turn_branch": Example(
        {"turn": "turn_44af", "new_session_id": "try-redis"}, _MOVED | {"session_id": "try-redis"}
    ),
    "turn_revert": Example({"turn": "tag:before-redis"}, _MOVED),
    "turn_tag": Example({"tag": "before-redis", "turn": "turn_44af"}, {"success": True, **_TAG}),
    "turn_delete": Example({"turn": "turn_9b20"}, {"success": True, "deleted_turns": 3}),
    "session_unfreeze": Example(
        {"session_id": "session_abc123"}, {"success": True, "session_id": "session_abc123", "state": "active"}
    ),
    "session_merge": Example(
        {"session_id": "session_def456", "into_session": "session_abc123"},
        {
            "success": True,
            "session_id": "session_abc123",
            "merged_session": "session_def456",
            "turn_count": 14,
            "token_count": 4096,
        },
    ),
    "session_share": Example(
        {"session_id": "session_abc123", "visibility": "tenant"}, {"success": True, "visibility": "tenant"}
    ),
    "session_delete": Example(
        {"session_id": "session_abc123"}, {"success": True, "session_id": "session_abc123"}
    ),
    "cache_stats": Example(
        {},
        {
            "success": True,
            "kv_store": {"total_blocks": 150, "total_bytes": 52428800, "hit_rate": 0.92},
            "vllm": {"connected": True, "hit_rate": 0.85, "cached_tokens": 50000},
            "results": {
                "had_tokens": 120000,
                "delivered_tokens": 24000,
                "read_later_tokens": 6000,
                "saved_tokens": 90000,
                "previewed": 9,
                "not_kept": 0,
            },
        },
    ),
    "health_check": Example(
        {"component": "registry"},
        {
            "success": True,
            "status": "healthy",
            "uptime_seconds": 3600.5,
            "version": "0.6.1",
            "components": [{"name": "registry", "status": "healthy", "message": "OK", "latency_ms": 1.2}],
        },
    ),
    "engine_list": Example(
        {"engine": "a"},
        {
            "success": True,
            "engines": [
                {
                    "name": "a",
                    "answers": True,
                    "deployments": {"smollm2-135m": "kv-5f0c"},
                    "running": 2,
                    "sessions": 31,
                }
            ],
        },
    ),
    "session_move": Example(
        {"session_id": "session_abc123", "engine": "b"},
        {
            "success": True,
            "session_id": "session_abc123",
            "source": "a",
            "target": "b",
            "source_answered": True,
            "token_count": 6000,
            "tokens_restored": 5952,
            "tokens_recomputed": 48,
            "tokens_by_tier": {"redis": 5952},
            "blocks_found": 93,
            "blocks_total": 93,
            "canary": {
                "result": "exact",
                "decoded_on": "source",
                "tokens_compared": 16,
                "places_differing": 0,
                "first_difference": None,
                "deviation": 0.0,
                "mean_deviation": 0.0,
                "noise": None,
                "compared_with": "canary",
                "canary_origin": "inherited",
            },
            "move_ms": 840,
        },
    ),
    "engine_drain": Example(
        {"engine": "a"},
        {
            "success": True,
            "engine": "a",
            "answers": True,
            "draining_since": "2026-01-22T10:30:00Z",
            "moved": 31,
            "stayed": [],
            "stayed_elsewhere": 0,
        },
    ),
    "engine_upgrade": Example(
        {"model": "llama-3.1-8b", "to": "b"},
        {
            "success": True,
            "model": "llama-3.1-8b",
            "deployment": "kv-81d0",
            "since": "2026-01-22T10:30:00Z",
            "engines": {"a": "kv-5f0c", "b": "kv-81d0"},
            "windows_done": 12,
            "windows_left": 30,
        },
    ),
    "get_metrics_data": Example(
        {"format": "json"},
        {
            "success": True,
            "format": "json",
            "metrics": [
                {
                    "name": "cwm_operation_total",
                    "type": "counter",
                    "value": 42,
                    "labels": {"operation": "window_freeze", "status": "success"},
                }
            ],
        },
    ),
    "agent_session_create": Example(
        {}, {"success": True, "agent_session": _AGENT, "expires_in_seconds": 1800.0}
    ),
    "agent_session_end": Example({"agent_session": _AGENT}, {"success": True, "agent_session": _AGENT}),
    "context_set": Example(
        {"key": "files/package.json", "value": _VALUE, "ttl": 3600, **_SCOPE},
        _in_scope({"uri": "cwm://context/workspace:auth-refactor/files/package.json", "entry": _ENTRY}),
    ),
    "context_get": Example(
        {"key": "files/package.json", **_SCOPE},
        _in_scope(
            {
                "key": "files/package.json",
                "found": True,
                "scope_version": 23,
                "value": _VALUE,
                "entry": _ENTRY,
            }
        ),
    ),
    "context_delete": Example(
        {"key": "files/package.json", "if_version": 17, **_SCOPE},
        _in_scope({"key": "files/package.json", "deleted": True, "version": 24}),
    ),
    "context_list": Example(
        {"prefix": "files/", "limit": 20, **_SCOPE},
        _in_scope({"scope_version": 23, "entries": [_ENTRY], "has_more": False}),
    ),
    "context_snapshot": Example(
        {"label": "before-refactor", **_SCOPE}, _in_scope({"snapshot": _SNAPSHOT, "dropped": []})
    ),
    "context_restore": Example(
        {"snapshot": "before-refactor", **_SCOPE},
        _in_scope({"snapshot": _SNAPSHOT, "version": 25, "keys_written": 3, "keys_deleted": 1}),
    ),
    "context_stats": Example(
        _SCOPE,
        _in_scope(
            {
                "of_scope": {
                    "version": 23,
                    "oldest_version": 1,
                    "keys": 4,
                    "value_bytes": 18211,
                    "snapshots": [_SNAPSHOT],
                },
                "shared_store": {"used_bytes": 9120, "quota_bytes": 1073741824},
            }
        ),
    ),
    "result_read": Example(
        {"handle": _HANDLE, "page": 2},
        {
            "success": True,
            "handle": _HANDLE,
            "part": 0,
            "parts": 1,
            "kind": "text",
            "media_type": "text/plain",
            "page": 2,
            "pages": 7,
            "encoding": "utf-8",
            "text": "10:31:07 ERROR login: token expired\n",
            "start_byte": 7990,
            "end_byte": 8026,
            "size_bytes": 55930,
            "tokens": 13,
            "expires_at": _LATER,
            "next_cursor": _CURSOR,
        },
    ),
    "result_query": Example(
        {"handle": _HANDLE, "regex": "ERROR .*token", "context": 1},
        {
            "success": True,
            "handle": _HANDLE,
            "part": 0,
            "query": "regex",
            "text": "211-10:31:06 INFO login: ann\n212:10:31:07 ERROR login: token expired\n",
            "total": 1,
            "complete": True,
            "truncated": False,
            "size_bytes": 66,
            "tokens": 30,
        },
    ),
}
