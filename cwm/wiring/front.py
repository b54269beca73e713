"""What stands before every route, and what is kept out of every log line."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import structlog
from fastapi import FastAPI

from cwm.adapters.telemetry.redaction import HIDDEN
from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.errors import CwmError, SecurityError
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.settings import Settings
from cwm.transport.http.front import Front, Refusal

# Whoever refuses must not write a line for each of a million requests.
_EVENT_SECONDS: Final = 10.0

_log = structlog.get_logger("cwm.front")


def stand_before(app: FastAPI, settings: Settings, audit: AuditLog, clock: Clock) -> None:
    """Add the front to ``app``; what is added later stands before it."""
    refusals = AuditedRefusals(audit, clock, settings.isolation.tenant)
    security = settings.security
    hosts = [*security.allowed_hosts, *_own_names(settings)]
    app.add_middleware(Front, hosts=hosts, origins=security.allowed_origins, on_refusal=refusals.tell)


def _own_names(settings: Settings) -> list[str]:
    """The host that the gateway listens on, unless that stands for every address, and that of its public URL."""
    host, public = settings.http.host.lower(), urlsplit(settings.auth.public_url or "").hostname
    return [name for name in (host, public) if name and not _stands_for_all(name)]


def _stands_for_all(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


async def hide_secrets(settings: Settings) -> None:
    """From now on no log line shows a secret of these settings; those of earlier ones stay hidden."""
    HIDDEN.hide(settings.secrets())


class AuditedRefusals:
    """Writes down who was kept out: the first at once, of more of a kind how many they were, every few seconds."""

    def __init__(self, audit: AuditLog, clock: Clock, tenant: str) -> None:
        self._audit = audit
        self._clock = clock
        self._tenant = tenant
        self._since: Counter[Refusal] = Counter()
        self._next: dict[Refusal, float] = {}

    async def tell(self, why: Refusal, value: str) -> None:
        self._since[why] += 1
        if self._clock.monotonic() < self._next.get(why, 0.0):
            return
        self._next[why] = self._clock.monotonic() + _EVENT_SECONDS
        count = self._since.pop(why)
        _log.warning("request_refused", why=why.value, value=value, count=count)
        event = AuditEvent(
            timestamp=self._clock.now(),
            tenant=self._tenant,
            subject="unknown",
            event="security.request_refused",
            outcome=SecurityError.code,
            severity=Severity.WARNING,
            details={"header": why.value, "value": value, "count": count},
        )
        try:
            await self._audit.record(event)
        except CwmError:
            _log.exception("audit_not_written", event_name=event.event)
