"""Records who did what and how it ended, and notifies clients of changed resources."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.changes import SESSIONS_URI, WINDOWS_URI, Change, ChangeKind
from cwm.domain.errors import (
    CwmError,
    ErrorKind,
    InvalidSessionIdError,
    InvalidWindowNameError,
    PreviousResponseNotFoundError,
    SessionAlreadyExistsError,
    TurnTagExistsError,
    WindowAlreadyExistsError,
)
from cwm.domain.principal import Principal
from cwm.domain.record_quota import RecordQuota
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
_TAKEN: Final = (
    PreviousResponseNotFoundError,
    SessionAlreadyExistsError,
    WindowAlreadyExistsError,
    TurnTagExistsError,
)
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
    quota: RecordQuota = field(default_factory=RecordQuota)

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
        outcome, severity, is_left_out = "success", Severity.INFO, False
        with self.tracer.span(operation) as span:
            try:
                with self.meter.operation(operation):
                    yield details
            except CwmError as error:
                outcome, severity = error.code, Severity.WARNING
                is_left_out = not self._is_recorded(principal, error, details)
                error.audited = True
                raise
            except BaseException:
                outcome, severity = "interrupted", Severity.ERROR
                raise
            finally:
                self._describe(span, principal, session_id, window_name, details)
                if not is_left_out:
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
            await self.changed(principal.tenant, uri)

    async def changed(self, tenant: str, uri: str) -> None:
        """Notify clients of a changed resource."""
        await self.changes.publish(Change(ChangeKind.RESOURCE, uri, tenant=tenant))

    async def injection(self, principal: Principal, where: str, error: CwmError) -> None:
        """Record that a refused value looked like an attack: the field and the class of attack, never the value.

        ``where`` is the tool, route or resource. If the record cannot be written, the refusal stands.
        """
        if error.injection is None:
            return
        self.meter.event("injection_refused")
        name = error.context.get("field") or _FIELDS.get(type(error), "")
        details = {"where": where[:_MAX_CHARS], "field": name, "class": error.injection.value}
        await self._refused(principal, "security.injection", error.code, details)

    async def foreign(self, principal: Principal, what: str, **fields: Any) -> None:
        """Record that a principal asked for another's object and was answered that it does not exist."""
        self.meter.event("isolation_violation")
        await self._refused(principal, "security.isolation_violation", "denied", {"what": what, **fields})

    async def not_found(
        self, principal: Principal, where: str, error: CwmError, asked: Mapping[str, Any] | None = None
    ) -> None:
        """Record that a principal named what there is not, or what is not for it: both alike, since both are answered alike.

        ``where`` is the tool, route or resource, ``asked`` what was named, by default what the error names. Not for an error that the log has already.
        """
        if error.audited or not _names_what_is_not_there(error):
            return
        error.audited = True
        self.meter.event("not_found")
        names = error.context if asked is None else asked
        named = {name: each[:_MAX_CHARS] for name, each in names.items() if isinstance(each, str)}
        details = {"where": where[:_MAX_CHARS], **named}
        await self._refused(principal, "security.not_found", error.code, details)

    async def _refused(self, principal: Principal, event: str, outcome: str, details: dict[str, Any]) -> None:
        """Record a refusal, as far as the quota has room. If it cannot be written, the refusal stands."""
        if not self._has_room(principal, details):
            return
        with suppress(CwmError):
            await self.note(principal, event, outcome, details)

    def _is_recorded(self, principal: Principal, error: CwmError, details: dict[str, Any]) -> bool:
        """Whether a failed operation is: who tries names fills the log no further than the quota."""
        return not _names_what_is_not_there(error) or self._has_room(principal, details)

    def _has_room(self, principal: Principal, details: dict[str, Any]) -> bool:
        if not self.quota.take(principal.tenant, principal.subject, self.clock.monotonic()):
            return False
        if left_out := self.quota.left_out(principal.tenant):
            details["left_out"] = left_out
            self.quota.told(principal.tenant)
        return True

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


def _names_what_is_not_there(error: CwmError) -> bool:
    """Or a name that is somebody else's."""
    return error.kind is ErrorKind.NOT_FOUND or isinstance(error, _TAKEN)


def of_another(principal: Principal, owner: str) -> dict[str, Any]:
    """Details that name the owner if the principal acts on another's object of the tenant."""
    return {} if owner == principal.subject else {"owner": owner}
