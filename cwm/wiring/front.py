"""What stands before every route, and what is kept out of every log line."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

import structlog
from fastapi import FastAPI

from cwm.adapters.telemetry.redaction import HIDDEN
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.services.access.refusals import HeaderRefusals
from cwm.settings import Settings
from cwm.transport.http.front import Front


def stand_before(app: FastAPI, settings: Settings, audit: AuditLog, clock: Clock) -> None:
    """Add the front to ``app``; what is added later stands before it."""
    refusals = HeaderRefusals(audit, clock, settings.isolation.tenant, structlog.get_logger("cwm.front"))
    security = settings.security
    hosts = [*security.allowed_hosts, *_own_names(settings)]
    app.add_middleware(Front, hosts=hosts, origins=security.allowed_origins, told=refusals.note)


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
