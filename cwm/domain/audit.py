"""What an audit record contains. It never contains a prompt, a token or a secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from cwm.domain.origin import ORIGIN, Origin
from cwm.domain.principal import Principal

TRACE_ID: Final = "trace_id"
"""The detail that has the id of the trace in which an event was recorded, where that trace is kept."""


class Severity(StrEnum):
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One line of the audit log: who did what, from where, and how it ended.

    ``event`` names an operation (``window_freeze``) or an occurrence (``session.turn``); ``origin`` defaults to the
    origin of the request being served.
    """

    timestamp: datetime
    tenant: str
    subject: str
    event: str
    outcome: str
    session_id: str | None = None
    window_name: str | None = None
    severity: Severity = Severity.INFO
    details: dict[str, Any] = field(default_factory=dict)
    origin: Origin = field(default_factory=ORIGIN.get)


def acting(actor: Principal | None, tenant: str) -> dict[str, Any]:
    """Details that name who acts from another tenant."""
    if actor is None or actor.tenant == tenant:
        return {}
    return {"actor": actor.subject, "actor_tenant": actor.tenant}
