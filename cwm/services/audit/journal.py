"""Records who did what and how it ended, and notifies clients of changed resources."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.changes import SESSIONS_URI, WINDOWS_URI, Change, ChangeKind
from cwm.domain.errors import CwmError, InvalidSessionIdError, InvalidWindowNameError
from cwm.domain.principal import Principal
from cwm.ports.audit import AuditLog
from cwm.ports.changes import Changes
from cwm.ports.clock import Clock
from cwm.ports.meter import Meter
from cwm.ports.tracing import UNTRACED, Span, Tracer, named

_CHANGED_URIS: Final[Mapping[str, tuple[str, ...]]] = {
    "window_freeze": (WINDOWS_URI, SESSIONS_URI),
    "window_clone": (WINDOWS_URI,),
    "window_rename": (WINDOWS_URI,),
    "window_extend": (WINDOWS_URI,),
    "window_delete": (WINDOWS_URI, SESSIONS_URI),
    "window_thaw": (SESSIONS_URI,),
    "session_create": (SESSIONS_URI,),
    "session_delete": (SESSIONS_URI,),
    "session_unfreeze": (SESSIONS_URI,),
    "session_merge": (SESSIONS_URI, WINDOWS_URI),
    "session_share": (SESSIONS_URI, WINDOWS_URI),
    "window_share": (WINDOWS_URI,),
    "turn_branch": (SESSIONS_URI,),
    "turn_revert": (SESSIONS_URI,),
}
"""The resources of CWM that an operation changes."""
_MAX_CHARS: Final = 128
_FIELDS: Final[Mapping[type[CwmError], str]] = {
    InvalidSessionIdError: "session_id",
    InvalidWindowNameError: "window_name",
}


@dataclass(frozen=True, slots=True)
class Journal:
    """Audit record, metric, span and notification of an operation: every service operation runs inside ``entry``."""

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
        """Yield the event's details to fill in. The code of a CwmError becomes the outcome; the error is raised again."""
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
                await self.note(
                    principal,
                    operation,
                    outcome,
                    details,
                    severity,
                    session_id=session_id,
                    window_name=window_name,
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
        """Add names and the numeric details to the span; other details could contain text of a user."""
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
        for uri in _CHANGED_URIS.get(operation, ()):
            await self.changes.publish(Change(ChangeKind.RESOURCE, uri, tenant=principal.tenant))

    async def injection(self, principal: Principal, where: str, error: CwmError) -> None:
        """Record that a refused value looked like an attack: the field and the class of attack, never the value.

        ``where`` is the tool, route or resource. If the record cannot be written, the refusal stands.
        """
        if error.injection is None:
            return
        self.meter.event("injection_refused")
        field = error.context.get("field") or _FIELDS.get(type(error), "")
        details = {"where": where[:_MAX_CHARS], "field": field, "class": error.injection.value}
        with suppress(CwmError):
            await self.note(principal, "security.injection", error.code, details)

    async def foreign(self, principal: Principal, what: str, **fields: Any) -> None:
        """Record that a principal asked for another's object and was answered that it does not exist."""
        self.meter.event("isolation_violation")
        with suppress(CwmError):
            await self.note(principal, "security.isolation_violation", "denied", {"what": what, **fields})

    async def shared(self, principal: Principal, what: str, **fields: Any) -> None:
        """Record that a principal reads what another has shared. CWM-4001."""
        await self.note(
            principal, "security.shared_access", "success", {"what": what, **fields}, Severity.INFO
        )

    async def note(
        self,
        principal: Principal,
        event: str,
        outcome: str,
        details: dict[str, Any],
        severity: Severity = Severity.WARNING,
        *,
        session_id: str | None = None,
        window_name: str | None = None,
    ) -> None:
        """Record an event of a principal, now. CWM-4001."""
        await self.audit.record(
            AuditEvent(
                timestamp=self.clock.now(),
                tenant=principal.tenant,
                subject=principal.subject,
                event=event,
                outcome=outcome,
                session_id=session_id,
                window_name=window_name,
                severity=severity,
                details=details,
            )
        )


def of_another(principal: Principal, owner: str) -> dict[str, Any]:
    """Details that name the owner if the principal acts on another's object of the tenant."""
    return {} if owner == principal.subject else {"owner": owner}
