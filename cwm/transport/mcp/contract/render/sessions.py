"""Converts records of sessions to the answers of tools."""

from __future__ import annotations

from cwm.domain.session import Session
from cwm.domain.visibility import visibility_of
from cwm.services.turns.sending.generate import Generated
from cwm.services.windows.browse import SessionPage
from cwm.transport.mcp.contract.render.scalars import moment, state_name
from cwm.transport.mcp.contract.schemas import sessions as schemas


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
        "state": state_name(session),
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
        "state": state_name(session),
        "created_at": moment(session.created_at),
        "visibility": visibility_of(session.circle),
    }
