"""The audit log: who did what, how it ended, and whether its chain is whole."""

from __future__ import annotations

import json
from typing import Any, Final

from cwm.ports.audit import AuditFilter
from cwm.transport.console.pages import Page
from cwm.transport.console.views import Asked

_PAGE: Final = 50
_FILTERS: Final = {
    "event": "Event",
    "outcome": "Outcome",
    "subject": "Who",
    "session": "Conversation",
    "window": "Window",
}
_LONGEST: Final = 400


async def audit(asked: Asked) -> Page:
    filters = {name: asked.text(name) for name in _FILTERS}
    before = asked.number("before")
    wanted = AuditFilter(
        event=filters["event"] or None,
        outcome=filters["outcome"] or None,
        subject=filters["subject"] or None,
        session_id=filters["session"] or None,
        window_name=filters["window"] or None,
        before=before,
    )
    services, is_verified = asked.services, bool(asked.text("verify"))
    page = await services.read_audit(asked.principal, wanted, _PAGE)
    return Page(
        "audit.html",
        {
            "page": page,
            "labels": _FILTERS,
            "filters": filters,
            "is_first": before is None,
            "details": {record.seq: _details(record.event.details) for record in page.records},
            "traces": {record.seq: asked.traces.of(record.event.details) for record in page.records},
            "is_verified": is_verified,
            "verdict": await services.read_audit.verified(asked.principal) if is_verified else None,
        },
    )


def _details(details: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, _brief(value)) for name, value in details.items() if value not in (None, "", [], {})]


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
