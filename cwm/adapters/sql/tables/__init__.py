"""The schema. Every key starts with the tenant, so that no index ever mixes two.

``metadata`` has all of it, whichever of its modules was imported.
"""

from __future__ import annotations

from cwm.adapters.sql.tables import (
    api_keys,
    audit,
    contents,
    gateways,
    sessions,
    shared_context,
    window_lists,
    windows,
)
from cwm.adapters.sql.tables.columns import metadata

__all__ = [
    "api_keys",
    "audit",
    "contents",
    "gateways",
    "metadata",
    "sessions",
    "shared_context",
    "window_lists",
    "windows",
]
