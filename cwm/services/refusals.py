"""Writing down whom CWM turned away, and no more often than a log can bear."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.errors import CwmError, SecurityError, UnauthenticatedError
from cwm.domain.principal import Principal
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.ports.meter import Meter

_EVENT: Final = "security.access_denied"
_NOBODY: Final = "unauthenticated"
_WINDOW_SECONDS: Final = 60.0
_MOST: Final = 60
_LONGEST: Final = 128


class Refusals:
    """``security.access_denied`` in the audit log: 60 a minute and gateway, all of them in the metrics.

    Whoever floods a gateway with bad tokens would fill the log otherwise. The first event after a gap
    carries how many were left out. A request without any credentials is no attempt, but how every client begins.
    """

    def __init__(self, audit: AuditLog, clock: Clock, meter: Meter, tenant: str) -> None:
        self._audit = audit
        self._clock = clock
        self._meter = meter
        self._tenant = tenant
        self._began = clock.monotonic()
        self._written = 0
        self._left_out = 0

    async def note(self, refused: SecurityError, where: str, principal: Principal | None = None) -> None:
        """``where`` is the face or the tool: a word of ours or a tool's name, never what a stranger wrote."""
        why = refused.why if isinstance(refused, UnauthenticatedError) else "insufficient_scope"
        self._meter.event("access_denied")
        if why == "no_credentials" or not self._has_room():
            return
        details: dict[str, Any] = {"why": why, "where": where[:_LONGEST]}
        if "required" in refused.context:
            details["required"] = refused.context["required"]
        if self._left_out:
            details["left_out"] = self._left_out
        with suppress(CwmError):
            # What cannot be written down is refused all the same.
            await self._audit.record(
                AuditEvent(
                    self._clock.now(),
                    self._tenant if principal is None else principal.tenant,
                    _NOBODY if principal is None else principal.subject,
                    _EVENT,
                    refused.code,
                    severity=Severity.WARNING,
                    details=details,
                )
            )
            self._left_out = 0

    def _has_room(self) -> bool:
        now = self._clock.monotonic()
        if now - self._began >= _WINDOW_SECONDS:
            self._began, self._written = now, 0
        if self._written >= _MOST:
            self._left_out += 1
            return False
        self._written += 1
        return True
