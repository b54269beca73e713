"""The only reader of the environment and of ``cwm.yaml``.

A value comes from the environment (``CWM_<FIELD>``, upper case), else from ``cwm.yaml``
(``<group>: {<field>: …}``), else from its default; ``Settings.sources`` remembers which. Upstream servers
stand in the file alone. ``CWM_CONFIG`` names another file than ``./cwm.yaml``.
"""

from __future__ import annotations

from cwm.settings.auth import Auth
from cwm.settings.errors import SettingsError
from cwm.settings.group import Group
from cwm.settings.groups import (
    ABSENT,
    ENV_PREFIX,
    GROUPS,
    Audit,
    Context,
    Database,
    Engine,
    Http,
    Isolation,
    Limits,
    LocalEngine,
    Logging,
    Metrics,
    Retention,
    Security,
    Shared,
    Storage,
    StoredResults,
    Thaw,
    Tokens,
    Tracing,
    Verification,
)
from cwm.settings.load import CONFIG_ENV, Settings, Source, load

__all__ = [
    "ABSENT",
    "CONFIG_ENV",
    "ENV_PREFIX",
    "GROUPS",
    "Audit",
    "Auth",
    "Context",
    "Database",
    "Engine",
    "Group",
    "Http",
    "Isolation",
    "Limits",
    "LocalEngine",
    "Logging",
    "Metrics",
    "Retention",
    "Security",
    "Settings",
    "SettingsError",
    "Shared",
    "Source",
    "Storage",
    "StoredResults",
    "Thaw",
    "Tokens",
    "Tracing",
    "Verification",
    "load",
]
