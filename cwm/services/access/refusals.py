"""Records refused requests in the audit log, with a bounded rate."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.errors import CwmError, SecurityError, UnauthenticatedError
from cwm.domain.origin import ORIGIN
from cwm.domain.principal import Principal
from cwm.domain.record_quota import RecordQuota
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.ports.meter import Meter

_EVENT: Final = "security.access_denied"
_NOBODY: Final = "unauthenticated"
_LONGEST: Final = 128
# Seconds between two records of requests that were refused for the same header.
_HEADER_EVENT_SECONDS: Final = 10.0


@dataclass(slots=True)
class Refusals:
    """Writes ``security.access_denied`` to the audit log with a bounded rate; the metrics count every refusal.

    The bound keeps a flood of bad tokens from filling the log. A gateway records at most 60 a minute for each tenant and
    60 for strangers, and of these at most 20 for one subject or address, so that one flood does not hide other attempts.
    The first event after a gap has the number left out. Requests without credentials are not recorded: every client
    begins with one.
    """

    audit: AuditLog
    clock: Clock
    meter: Meter
    tenant: str
    _quota: RecordQuota = field(default_factory=RecordQuota)

    async def note(self, error: SecurityError, where: str, principal: Principal | None = None) -> None:
        """Count and record a refusal. ``where`` is the face or the tool's name, never text of a stranger."""
        why = (
            error.why
            if isinstance(error, UnauthenticatedError)
            else str(error.context.get("reason", "insufficient_scope"))
        )
        self.meter.event("access_denied")
        if why == "no_credentials":
            return
        tenant = None if principal is None else principal.tenant
        source = ORIGIN.get().source if principal is None else principal.subject
        if not self._quota.take(tenant, source, self.clock.monotonic()):
            return
        details: dict[str, Any] = {"why": why, "where": where[:_LONGEST]}
        if "required" in error.context:
            details["required"] = error.context["required"]
        if left_out := self._quota.left_out(tenant):
            details["left_out"] = left_out
        with suppress(CwmError):
            # The request is refused even if this cannot be recorded.
            await self.audit.record(
                AuditEvent(
                    self.clock.now(),
                    self.tenant if principal is None else principal.tenant,
                    _NOBODY if principal is None else principal.subject,
                    _EVENT,
                    error.code,
                    severity=Severity.WARNING,
                    details=details,
                )
            )
            self._quota.told(tenant)


class EventLog(Protocol):
    """A structured log: the name of an event and its fields."""

    def warning(self, event: str, **fields: object) -> object: ...

    def exception(self, event: str, **fields: object) -> object: ...


@dataclass(slots=True)
class HeaderRefusals:
    """Records ``security.request_refused``, requests refused for a header's value: at most once in ten seconds a header.

    The first is recorded at once; a later record has the number of refusals since.
    """

    audit: AuditLog
    clock: Clock
    tenant: str
    log: EventLog
    _counts: Counter[str] = field(default_factory=Counter)
    _next: dict[str, float] = field(default_factory=dict)

    async def note(self, header: str, value: str) -> None:
        self._counts[header] += 1
        if self.clock.monotonic() < self._next.get(header, 0.0):
            return
        self._next[header] = self.clock.monotonic() + _HEADER_EVENT_SECONDS
        count = self._counts.pop(header)
        self.log.warning("request_refused", why=header, value=value, count=count)
        event = AuditEvent(
            timestamp=self.clock.now(),
            tenant=self.tenant,
            subject="unknown",
            event="security.request_refused",
            outcome=SecurityError.code,
            severity=Severity.WARNING,
            details={"header": header, "value": value, "count": count},
        )
        try:
            await self.audit.record(event)
        except CwmError:
            self.log.exception("audit_not_written", event_name=event.event)
