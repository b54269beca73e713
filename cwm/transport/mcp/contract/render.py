"""Converts the services' records to the answers of tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, cast

from cwm.domain.divergence import Cause, Habit, Miss
from cwm.domain.engine import Tier
from cwm.domain.facts import Fact
from cwm.domain.habits import switch_against
from cwm.domain.session import Session
from cwm.domain.transcripts import anthropic, warning
from cwm.domain.turn import Turn, TurnTag
from cwm.domain.visibility import visibility_of
from cwm.domain.window import Window
from cwm.domain.word_search import Finding
from cwm.ports.kv_tier import TierUsage
from cwm.services.engines.survey import EngineState
from cwm.services.health.inspect import CacheStats, Health
from cwm.services.moves.drain import Drained
from cwm.services.moves.move import Moved
from cwm.services.moves.upgrades import Upgraded
from cwm.services.results.savings import SavedTokens
from cwm.services.turns.compactions import LeftOut
from cwm.services.turns.compare import Difference
from cwm.services.turns.generate import Generated
from cwm.services.turns.history import Transcript, TurnLog
from cwm.services.turns.search import FindingPage
from cwm.services.windows.browse import (
    BlockStatus,
    Residency,
    SessionPage,
    SessionStatus,
    WindowPage,
    WindowStatus,
)
from cwm.services.windows.delete import Deleted
from cwm.services.windows.freeze import Frozen
from cwm.services.windows.receipt import Receipt
from cwm.services.windows.thaw import Thawed
from cwm.transport.mcp.contract import schemas

# Ordered by distance from the engine, the nearest first.
_MOST_FACTS: Final = 500
_TIERS: Final = (Tier.CPU, Tier.REDIS, Tier.DISK)


def moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


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
        answer["storage_tier"] = _tier(window.stored_tier)
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
            "tokens_compared": result.evidence.tokens_compared,
            "first_difference": result.evidence.first_difference,
            "deviation": result.evidence.deviation,
            "reason": result.evidence.reason,
            "verify_ms": result.verify_ms,
            "recovered": None if result.recovered is None else result.recovered.value,
        },
    }


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)


def generated(result: Generated) -> schemas.Generated:
    return {
        "success": True,
        "session_id": result.session_id,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "token_count": result.token_count,
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "cached_tokens": result.cached_tokens,
    }


def turn_log(log: TurnLog) -> schemas.TurnLog:
    answer: schemas.TurnLog = {
        "success": True,
        "session_id": log.session_id,
        "turns": [_turn_item(turn, log.words.get(turn.id), log.habits.get(turn.id)) for turn in log.turns],
        "tags": [turn_tag(tag) for tag in log.tags],
        "has_more": log.has_more,
    }
    if log.origin is not None:
        answer["origin"] = log.origin
    if log.current_turn is not None:
        answer["current_turn"] = log.current_turn
    if log.has_more:
        answer["next_before"] = log.turns[-1].number
    return answer


def turn_tag(tag: TurnTag) -> schemas.TurnTag:
    answer: schemas.TurnTag = {
        "tag": tag.name,
        "turn": tag.turn_id,
        "session_id": tag.session_id,
        "author": tag.author,
        "created_at": moment(tag.created_at),
    }
    if tag.automatic:
        answer["automatic"] = True
    return answer


def turn_shown(transcript: Transcript, message_format: str = "openai") -> schemas.TurnShown:
    answer: schemas.TurnShown = {
        "success": True,
        "session_id": transcript.turn.session_id,
        "turn": _turn_item(transcript.turn, habit=transcript.habit),
        "messages": [message.content for message in transcript.messages if message.content],
    }
    if message_format == "anthropic":
        answer["system"], answer["messages"] = anthropic(answer["messages"])
    if transcript.token_ids is not None:
        answer["token_ids"] = list(transcript.token_ids)
    if (reason := warning(transcript.messages)) is not None:
        answer["warning"] = reason
    return answer


def turns_found(page: FindingPage) -> schemas.TurnsFound:
    answer: schemas.TurnsFound = {
        "success": True,
        "results": [_turn_found(finding) for finding in page.findings],
        "searched_messages": page.searched,
    }
    if page.next_cursor is not None:
        answer["next_cursor"] = page.next_cursor
    return answer


def _turn_found(finding: Finding) -> schemas.TurnFound:
    answer: schemas.TurnFound = {
        "session_id": finding.session_id,
        "turn": finding.turn_id,
        "number": finding.number,
        "role": finding.role,
        "excerpt": finding.excerpt,
        "asked_at": moment(finding.asked_at),
    }
    if finding.content is not None:
        answer["message"] = dict(finding.content)
    return answer


def turn_diff(difference: Difference) -> schemas.TurnDiff:
    answer: schemas.TurnDiff = {
        "success": True,
        "left_tokens": difference.left_tokens,
        "right_tokens": difference.right_tokens,
        "common_tokens": difference.common_tokens,
        "common_messages": difference.common_messages,
        "reused_tokens": difference.reused_tokens,
        "computed_tokens": difference.computed_tokens,
    }
    if difference.left_message is not None:
        answer["left_message"] = difference.left_message.content
    if difference.right_message is not None:
        answer["right_message"] = difference.right_message.content
    if difference.thaw_ms is not None:
        answer["thaw_ms"] = round(difference.thaw_ms, 1)
    return answer


def left_out(result: LeftOut) -> schemas.LeftOut:
    answer: schemas.LeftOut = {
        "success": True,
        "turn": result.turn.id,
        "before": result.before.id,
        "fact_count": result.fact_count,
        "left_out_count": len(result.facts),
        "facts": [_fact(fact) for fact in result.facts[:_MOST_FACTS]],
    }
    if result.tag is not None:
        answer["tag"] = result.tag
    return answer


def _fact(fact: Fact) -> schemas.LeftOutFact:
    role: Literal["user", "assistant"] = "user" if fact.role == "user" else "assistant"
    return {"kind": fact.kind.value, "text": fact.text, "message": fact.message, "role": role}


def _turn_item(
    turn: Turn, words: tuple[str, str] | None = None, habit: Habit | None = None
) -> schemas.TurnItem:
    answer: schemas.TurnItem = {
        "id": turn.id,
        "number": turn.number,
        "state": turn.state.value,
        "author": turn.author,
        "asked_at": moment(turn.asked_at),
    }
    if turn.client:
        answer["client"] = turn.client
    if turn.ended_at is None:
        return answer
    answer["ended_at"] = moment(turn.ended_at)
    answer["relation"] = "begins" if turn.parent is None else "continues" if turn.continues else "branches"
    answer["line"] = "main" if turn.main else "side"
    answer["prompt_tokens"], answer["token_count"] = turn.prompt_tokens, turn.total_tokens
    if turn.parent is not None:
        answer["parent"], answer["parent_at"] = turn.parent, turn.parent_at
    _add_divergence(answer, turn, words, habit)
    if turn.cached_tokens is not None:
        answer["cached_tokens"] = turn.cached_tokens
    if turn.compacts is not None:
        answer["compacts"] = turn.compacts
    if turn.missed is not None:
        answer["missed"] = Miss(turn.missed).value
    if turn.first_token_ms is not None:
        answer["first_token_ms"] = turn.first_token_ms
    if turn.router_decision is not None:
        answer["router_decision"] = turn.router_decision
    return answer


def _add_divergence(
    answer: schemas.TurnItem, turn: Turn, words: tuple[str, str] | None, habit: Habit | None
) -> None:
    if turn.diverged_at is not None:
        answer["diverged_at"], answer["cause"] = turn.diverged_at, Cause(turn.cause).value
    if habit is not None:
        answer["habit"] = habit.value
        if (switch := switch_against(habit, turn.client)) is not None:
            answer["habit_switch"] = switch
    if words is not None:
        answer["words"] = {"old": words[0], "new": words[1]}


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
        answer["storage_tier"] = _tier(window.stored_tier)
    if window.expires_at is not None:
        answer["expires_at"] = moment(window.expires_at)
    return answer


def window_status(status: WindowStatus, *, include_blocks: bool) -> schemas.Status:
    window = status.window
    kv_cache = _kv_cache(window.block_count, window.total_size_bytes, status.residency)
    if window.stored_tier is not None:
        kv_cache["storage_tier"] = _tier(window.stored_tier)
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
        kv_cache["storage_tier"] = _tier(max(_TIERS, key=lambda tier: block_counts.get(tier, 0)))
    answer: schemas.Status = {
        "type": "session",
        "id": session.id,
        "state": _state(session),
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


def session_list(page: SessionPage) -> schemas.SessionList:
    answer: schemas.SessionList = {
        "success": True,
        "sessions": [_session_item(session) for session in page.sessions],
        "count": len(page.sessions),
        "has_more": page.next_cursor is not None,
    }
    if page.next_cursor is not None:
        answer["next_cursor"] = page.next_cursor
    return answer


def _session_item(session: Session) -> schemas.SessionItem:
    answer: schemas.SessionItem = {
        "id": session.id,
        "model": session.model,
        "state": _state(session),
        "created_at": moment(session.created_at),
        "token_count": session.token_count,
        "updated_at": moment(session.updated_at),
        "owner": session.owner,
        "visibility": visibility_of(session.circle),
    }
    if session.thawed_from is not None:
        answer["thawed_from"] = session.thawed_from
    return answer


def session_created(session: Session) -> schemas.SessionCreated:
    return {
        "success": True,
        "session_id": session.id,
        "model": session.model,
        "state": _state(session),
        "created_at": moment(session.created_at),
        "visibility": visibility_of(session.circle),
    }


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
        answer["session_state"] = _state(result.session)
    if result.warning is not None:
        answer["warning"] = result.warning
    return answer


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
    answer: schemas.TierUsage = {"tier": _tier(usage.tier), "used_bytes": usage.used_bytes}
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
        "tiers": [_tier(tier) for tier in _TIERS if tier in block.tiers],
    }
    if answer["tiers"]:
        answer["storage_tier"] = answer["tiers"][0]
    return answer


def _tier(tier: Tier) -> schemas.Tier:
    return cast("schemas.Tier", str(tier))


def _state(session: Session) -> schemas.SessionState:
    return cast("schemas.SessionState", str(session.state))


def engines(states: Sequence[EngineState]) -> schemas.EngineList:
    return {"success": True, "engines": [_engine(state) for state in states]}


def _engine(state: EngineState) -> schemas.EngineInfo:
    info: schemas.EngineInfo = {
        "name": state.name,
        "answers": state.is_up,
        "deployments": dict(state.deployments),
        "running": state.running,
        "sessions": state.sessions,
    }
    if state.since is not None:
        info["since"] = moment(state.since)
    if state.reason:
        info["reason"] = state.reason
    if state.draining_since is not None:
        info["draining_since"] = moment(state.draining_since)
    return info


def moved(result: Moved) -> schemas.SessionMoved:
    evidence = result.evidence
    canary = {
        "result": evidence.verification.value,
        "tokens_compared": evidence.tokens_compared,
        **({"decoded_on": result.canary_of} if result.canary_of else {}),
        **({"reason": evidence.reason} if evidence.reason else {}),
    }
    answer: schemas.SessionMoved = {
        "success": True,
        "session_id": result.session_id,
        "target": result.target,
        "source_answered": result.source_answered,
        "token_count": result.token_count,
        "tokens_restored": result.tokens_restored,
        "tokens_recomputed": result.tokens_recomputed,
        "tokens_by_tier": dict(result.tokens_by_tier),
        "blocks_found": result.blocks_found,
        "blocks_total": result.blocks_total,
        "canary": cast("schemas.MoveCanary", canary),
        "move_ms": result.move_ms,
    }
    if result.source is not None:
        answer["source"] = result.source
    return answer


def drained(result: Drained, tenant: str) -> schemas.EngineDrained:
    """Sessions of other tenants are counted, not named."""
    own_sessions: list[schemas.SessionStayed] = [
        {"session_id": each.session_id, "code": each.error.code, "message": each.error.message}
        for each in result.stayed
        if each.tenant == tenant
    ]
    answer: schemas.EngineDrained = {
        "success": not result.stayed,
        "engine": result.engine,
        "answers": result.is_up,
        "moved": result.moved,
        "stayed": own_sessions,
        "stayed_elsewhere": len(result.stayed) - len(own_sessions),
    }
    if result.since is not None:
        answer["draining_since"] = moment(result.since)
    if result.to_compute:
        answer["to_compute"] = result.to_compute
    return answer


def upgraded(result: Upgraded) -> schemas.EngineUpgrade:
    answer: schemas.EngineUpgrade = {
        "success": True,
        "model": result.model,
        "engines": dict(result.engines),
        "windows_done": result.windows.done,
        "windows_left": result.windows.left,
    }
    if result.deployment is not None and result.since is not None:
        answer["deployment"] = result.deployment
        answer["since"] = moment(result.since)
    return answer
