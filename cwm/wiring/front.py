"""Adds the host and origin check in front of every route, and masks secrets in logs."""

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


def add_front(app: FastAPI, settings: Settings, audit: AuditLog, clock: Clock) -> None:
    """Add the host and origin check to ``app``. Middleware added later runs before it."""
    refusals = HeaderRefusals(audit, clock, settings.isolation.tenant, structlog.get_logger("cwm.front"))
    security = settings.security
    hosts = [*security.allowed_hosts, *_own_names(settings)]
    app.add_middleware(Front, hosts=hosts, origins=security.allowed_origins, on_refusal=refusals.note)


def _own_names(settings: Settings) -> list[str]:
    """The listening host, unless it is a wildcard address, and the host of the public URL."""
    host, public = settings.http.host.lower(), urlsplit(settings.auth.public_url or "").hostname
    return [name for name in (host, public) if name and not _is_wildcard(name)]


def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def hide_secrets(settings: Settings) -> None:
    """Mask the secrets of these settings in every log line. Secrets of earlier settings stay masked."""
    HIDDEN.hide(settings.secrets())
