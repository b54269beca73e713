"""Writing down who did what, and how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.ports.meter import Meter


@dataclass(frozen=True, slots=True)
class Journal:
    """Audit and meter of one operation, in one place: every service verb runs inside ``entry``."""

    audit: AuditLog
    clock: Clock
    meter: Meter

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
