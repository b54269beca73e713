"""What is written down when something happens: never a prompt, a token or a secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One line of the audit log. ``event`` is a dotted verb such as ``window.freeze``."""

    timestamp: datetime
    tenant: str
    subject: str
    event: str
    outcome: str
    session_id: str | None = None
    window_name: str | None = None
    severity: Severity = Severity.INFO
    details: dict[str, Any] = field(default_factory=dict)
