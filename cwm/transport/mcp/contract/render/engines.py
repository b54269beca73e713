"""Converts records of engines and moves to the answers of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from cwm.services.engines.survey import EngineState
from cwm.services.moves.drain import Drained
from cwm.services.moves.move import Moved
from cwm.services.moves.upgrades import Upgraded
from cwm.transport.mcp.contract.render.proof import compared
from cwm.transport.mcp.contract.render.scalars import moment
from cwm.transport.mcp.contract.schemas import engines as schemas


def engines(states: Sequence[EngineState]) -> schemas.EngineList:
    return {"success": True, "engines": [_engine(state) for state in states]}


def _engine(state: EngineState) -> schemas.EngineInfo:
    info: schemas.EngineInfo = {
        "name": state.name,
        "answers": state.is_up,
        "deployments": dict(state.deployments),
        "sessions": state.sessions,
    }
    if state.running is not None:
        info["running"] = state.running
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
        **compared(evidence),
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
