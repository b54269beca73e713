"""Autosave: which sessions' current turns are frozen without being asked for, and how many of these windows stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class AutosavePolicy:
    """When the current turn of a session is frozen, and how many of these automatic windows stay.

    Once its context is ``every_tokens`` longer or shorter than that of the last one, or that one is older than
    ``every``; None: not for this reason. The last ``keep`` of a session stay.
    """

    every_tokens: int | None = None
    every: timedelta | None = None
    keep: int = 3


@dataclass(frozen=True, slots=True)
class AutosavePolicies:
    """``by_tenant`` replaces ``default``; None: no automatic windows."""

    default: AutosavePolicy | None = None
    by_tenant: Mapping[str, AutosavePolicy | None] = field(default_factory=dict)

    def of(self, tenant: str | None) -> AutosavePolicy | None:
        """The policy of a tenant; None: of those that have none of their own."""
        return self.by_tenant.get(tenant or "", self.default)


@dataclass(frozen=True, slots=True)
class UnsavedQuery:
    """At most ``limit`` active sessions of whose current turn there is no window.

    Their context differs by ``tokens`` or more from that of their last automatic window, or this is from before
    ``saved_before``; their last use was between ``used_since`` and ``used_before``. Only of ``tenant`` if given, and not of the tenants ``but``;
    ``by_content`` as in ``SessionsSince``.
    """

    limit: int
    tokens: int | None = None
    saved_before: datetime | None = None
    used_since: datetime | None = None
    used_before: datetime | None = None
    tenant: str | None = None
    but: frozenset[str] = frozenset()
    by_content: bool | None = None
