"""Converts records of windows to the answers of tools."""

from __future__ import annotations

from cwm.domain.visibility import visibility_of
from cwm.domain.window import Window
from cwm.services.windows.browse import WindowPage
from cwm.services.windows.delete import Deleted
from cwm.services.windows.freeze import Frozen
from cwm.services.windows.receipt import Receipt
from cwm.services.windows.thaw import Thawed
from cwm.transport.mcp.contract.render.proof import compared
from cwm.transport.mcp.contract.render.scalars import moment, state_name, tier_name
from cwm.transport.mcp.contract.render.sessions import generated
from cwm.transport.mcp.contract.schemas import windows as schemas


def frozen(result: Frozen) -> schemas.Frozen:
    window = result.window
    answer: schemas.Frozen = {
        "success": True,
        "window_name": window.name,
        "block_count": window.block_count,
        "total_size_bytes": window.total_size_bytes,
        "token_count": window.token_count,
        "session_id": window.session_id,
        "durability": window.durability.value,
        "freeze_time_ms": result.freeze_time_ms,
        "tiers": dict(window.tiers),
        "visibility": visibility_of(window.circle),
    }
    if window.stored_tier is not None:
        answer["storage_tier"] = tier_name(window.stored_tier)
    if window.warning is not None:
        answer["warning"] = window.warning
    return answer


def thawed(result: Thawed) -> schemas.Thawed:
    answer: schemas.Thawed = {
        "success": True,
        "session_id": result.session.id,
        "window_name": result.window.name,
        "token_count": result.session.token_count,
        "restoration_time_ms": result.restoration_time_ms,
        "partial": result.partial,
        "verification": result.receipt.evidence.verification.value,
        "receipt": receipt(result.receipt),
        "visibility": visibility_of(result.session.circle),
    }
    if result.warning is not None:
        answer["warning"] = result.warning
    if result.continuation is not None:
        answer["continuation"] = generated(result.continuation)
    else:
        answer["next_step"] = (
            f"Send only what is new: with session_generate, with `cwm sessions generate {result.session.id} -m '…'`, or "
            f"to /v1/chat/completions with the header 'CWM-Continue: session:{result.session.id}'."
        )
    return answer


def receipt(result: Receipt) -> schemas.Receipt:
    return {
        "tokens_restored": result.tokens_restored,
        "tokens_recomputed": result.tokens_recomputed,
        "tokens_by_tier": dict(result.tokens_by_tier),
        "blocks_found": result.blocks_found,
        "blocks_total": result.blocks_total,
        "prefetch_ms": result.prefetch_ms,
        "engine_ms": result.engine_ms,
        "plan": {
            "decision": result.plan.decision.value,
            "predicted_ms": _rounded(result.plan.predicted_ms),
            "actual_ms": round(result.prefetch_ms + result.engine_ms, 3),
            "alternatives": {
                "load": _rounded(result.plan.load_ms),
                "recompute": _rounded(result.plan.recompute_ms),
            },
        },
        "engine_changes": [
            {"field": change.field, "frozen": change.then, "now": change.now}
            for change in result.engine_changes
        ],
        "verification": {
            **compared(result.evidence),
            "reason": result.evidence.reason,
            "verify_ms": result.verify_ms,
        },
    }


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)


def window_page(page: WindowPage) -> schemas.WindowPage:
    answer: schemas.WindowPage = {
        "windows": [_window_item(window) for window in page.windows],
        "total": page.total,
        "has_more": page.has_more,
    }
    if not page.total_exact:
        answer["total_is_at_least"] = True
    if page.next_cursor is not None:
        answer["next_cursor"] = page.next_cursor
    return answer


def _window_item(window: Window) -> schemas.WindowItem:
    answer: schemas.WindowItem = {
        "name": window.name,
        "description": window.description,
        "tags": list(window.tags),
        "model": window.model,
        "token_count": window.token_count,
        "size_bytes": window.total_size_bytes,
        "created_at": moment(window.created_at),
        "parent_window": window.parent_window,
        "updated_at": moment(window.updated_at),
        "session_id": window.session_id,
        "durability": window.durability.value,
        "retention": window.retention.value,
        "owner": window.owner,
        "visibility": visibility_of(window.circle),
    }
    if window.stored_tier is not None:
        answer["storage_tier"] = tier_name(window.stored_tier)
    if window.expires_at is not None:
        answer["expires_at"] = moment(window.expires_at)
    return answer


def cloned(clone: Window, source_window: str) -> schemas.Cloned:
    return {
        "success": True,
        "source_window": source_window,
        "target_window": clone.name,
        "shared_blocks": clone.block_count,
        "token_count": clone.token_count,
        "visibility": visibility_of(clone.circle),
    }


def deleted(result: Deleted) -> schemas.Deleted:
    answer: schemas.Deleted = {
        "success": True,
        "window_name": result.window_name,
        "blocks_deleted": result.blocks_deleted,
        "space_freed_bytes": result.space_freed_bytes,
    }
    if result.session is not None:
        answer["session_id"] = result.session.id
        answer["session_state"] = state_name(result.session)
    if result.warning is not None:
        answer["warning"] = result.warning
    return answer
