"""Converts the status of windows and sessions to the answer of window_status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from cwm.domain.engine import Tier
from cwm.domain.visibility import visibility_of
from cwm.services.windows.browse import BlockStatus, Residency, SessionStatus, WindowStatus
from cwm.transport.mcp.contract.render.scalars import moment, state_name, tier_name
from cwm.transport.mcp.contract.schemas import status as schemas

# Ordered by distance from the engine, the nearest first.
_TIERS: Final = (Tier.CPU, Tier.REDIS, Tier.DISK)


def window_status(status: WindowStatus, *, include_blocks: bool) -> schemas.Status:
    window = status.window
    kv_cache = _kv_cache(window.block_count, window.total_size_bytes, status.residency)
    if window.stored_tier is not None:
        kv_cache["storage_tier"] = tier_name(window.stored_tier)
    answer: schemas.Status = {
        "type": "window",
        "id": window.name,
        "state": "frozen",
        "model": window.model,
        "token_count": window.token_count,
        "kv_cache": kv_cache,
        "timestamps": {
            "created_at": moment(window.created_at),
            "updated_at": moment(status.updated_at),
            "frozen_at": moment(window.created_at),
        },
        "description": window.description,
        "tags": list(window.tags),
        "session_id": window.session_id,
        "durability": window.durability.value,
        "retention": window.retention.value,
        "parent_window": window.parent_window,
        "owner": window.owner,
        "visibility": visibility_of(window.circle),
    }
    if window.expires_at is not None:
        answer["expires_at"] = moment(window.expires_at)
    if window.proven_at is not None:
        answer["proven_at"] = moment(window.proven_at)
    if status.canary is not None:
        answer["canary"] = {
            "places": len(status.canary.look.places),
            "origin": status.canary.origin.value,
        }
    if window.failure is not None:
        answer["failure"] = window.failure
    if window.warning is not None:
        answer["warning"] = window.warning
    if window.branch_token is not None:
        answer["branch_token"] = window.branch_token
    if include_blocks:
        answer["blocks"] = [_block(block) for block in status.residency.blocks]
    return answer


def session_status(status: SessionStatus, *, include_blocks: bool) -> schemas.Status:
    session, blocks = status.session, status.residency.blocks
    kv_cache = _kv_cache(len(blocks), sum(block.size_bytes for block in blocks), status.residency)
    block_counts = _count_by_tier(blocks)
    if block_counts:
        # The tier that holds most blocks; of equal tiers, the nearest to the engine.
        kv_cache["storage_tier"] = tier_name(max(_TIERS, key=lambda tier: block_counts.get(tier, 0)))
    answer: schemas.Status = {
        "type": "session",
        "id": session.id,
        "state": state_name(session),
        "model": session.model,
        "token_count": session.token_count,
        "kv_cache": kv_cache,
        "timestamps": {
            "created_at": moment(session.created_at),
            "updated_at": moment(session.updated_at),
            "frozen_at": moment(session.frozen_at) if session.frozen_at else None,
        },
        "owner": session.owner,
        "visibility": visibility_of(session.circle),
    }
    if session.user_metadata:
        answer["metadata"] = session.user_metadata
    if session.thawed_from is not None:
        answer["parent_window"] = session.thawed_from
    if session.branch_token is not None:
        answer["branch_token"] = session.branch_token
    if include_blocks:
        answer["blocks"] = [_block(block) for block in blocks]
    return answer


def _kv_cache(block_count: int, total_size_bytes: int, residency: Residency) -> schemas.KvCache:
    cache: schemas.KvCache = {"block_count": block_count, "total_size_bytes": total_size_bytes}
    if residency.hit_rate is not None:
        cache["hit_rate"] = residency.hit_rate
        cache["tiers"] = {str(tier): count for tier, count in _count_by_tier(residency.blocks).items()}
    return cache


def _count_by_tier(blocks: tuple[BlockStatus, ...]) -> Mapping[Tier, int]:
    return Counter(tier for block in blocks for tier in block.tiers)


def _block(block: BlockStatus) -> schemas.Block:
    answer: schemas.Block = {
        "hash": block.hash,
        "size_bytes": block.size_bytes,
        "tiers": [tier_name(tier) for tier in _TIERS if tier in block.tiers],
    }
    if answer["tiers"]:
        answer["storage_tier"] = answer["tiers"][0]
    return answer
