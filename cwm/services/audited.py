"""Writing down who did what, how it ended, and telling whom it may concern."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.changes import SESSIONS_URI, WINDOWS_URI, Change, ChangeKind
from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.ports.audit import AuditLog
from cwm.ports.changes import Changes
from cwm.ports.clock import Clock
from cwm.ports.meter import Meter
from cwm.ports.tracing import UNTRACED, Span, Tracer, named

_CHANGED: Final[Mapping[str, tuple[str, ...]]] = {
    "window_freeze": (WINDOWS_URI, SESSIONS_URI),
    "window_clone": (WINDOWS_URI,),
    "window_delete": (WINDOWS_URI,),
    "window_thaw": (SESSIONS_URI,),
    "session_create": (SESSIONS_URI,),
    "session_delete": (SESSIONS_URI,),
}
"""Which of CWM's own resources read otherwise after an operation."""


@dataclass(frozen=True, slots=True)
class Journal:
    """Audit, meter, span and news of one operation, in one place: every service verb runs inside ``entry``."""

    audit: AuditLog
    clock: Clock
    meter: Meter
    changes: Changes
    tracer: Tracer = UNTRACED

    @asynccontextmanager
    async def entry(
        self,
        principal: Principal,
        operation: str,
        *,
        session_id: str | None = None,
        window_name: str | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the event's details to fill in; a coded error becomes its outcome and passes on."""
        details: dict[str, Any] = {}
        outcome, severity = "success", Severity.INFO
        with self.tracer.span(operation) as span:
            try:
                with self.meter.operation(operation):
                    yield details
            except CwmError as error:
                outcome, severity = error.code, Severity.WARNING
                raise
            except BaseException:
                outcome, severity = "interrupted", Severity.ERROR
                raise
            finally:
                self._describe(span, principal, session_id, window_name, details)
                await self.audit.record(
                    AuditEvent(
                        timestamp=self.clock.now(),
                        tenant=principal.tenant,
                        subject=principal.subject,
                        event=operation,
                        outcome=outcome,
                        session_id=session_id,
                        window_name=window_name,
                        severity=severity,
                        details=details,
                    )
                )
            await self._tell(principal, operation)

    def _describe(
        self,
        span: Span,
        principal: Principal,
        session_id: str | None,
        window_name: str | None,
        details: Mapping[str, Any],
    ) -> None:
        """Of the details what is a number: no text can be in it."""
        if not self.tracer.on:
            return
        names = {
            "cwm.tenant": named(principal.tenant),
            "gen_ai.conversation.id": named(session_id),
            "cwm.window.name": named(window_name),
        }
        counts = {f"cwm.{name}": value for name, value in details.items() if isinstance(value, int | float)}
        span.note({**{key: name for key, name in names.items() if name is not None}, **counts})

    async def _tell(self, principal: Principal, operation: str) -> None:
        for uri in _CHANGED.get(operation, ()):
            await self.changes.publish(Change(ChangeKind.RESOURCE, uri, tenant=principal.tenant))
