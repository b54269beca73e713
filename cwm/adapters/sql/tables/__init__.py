"""The schema. Keys of a tenant's data start with the tenant, so that no index mixes two tenants.

``metadata`` has every table, whichever of these modules is imported.
"""

from __future__ import annotations

from cwm.adapters.sql.tables import (
    api_keys,
    audit,
    contents,
    gateways,
    responses,
    sessions,
    shared_context,
    turn_sums,
    turns,
    upstream_tasks,
    upstream_tools,
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
    "responses",
    "sessions",
    "shared_context",
    "turn_sums",
    "turns",
    "upstream_tasks",
    "upstream_tools",
    "window_lists",
    "windows",
]
