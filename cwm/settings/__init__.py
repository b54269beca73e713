"""Settings: the only reader of the environment and of ``cwm.yaml``.

A value comes from the environment (``CWM_<FIELD>``, upper case), else from ``cwm.yaml`` (``<group>: {<field>:
…}``), else from its default; ``Settings.sources`` records which. Upstream servers are configured in the file only.
``CWM_CONFIG`` names a file other than ``./cwm.yaml``.
"""

from __future__ import annotations

from cwm.settings.auth import Auth
from cwm.settings.engine import ABSENT, Engine, Isolation, LocalEngine, Thaw, Verification
from cwm.settings.errors import SettingsError
from cwm.settings.front import Http, Limits, Security
from cwm.settings.group import Group
from cwm.settings.groups import ENV_PREFIX, GROUPS, Settings, Source
from cwm.settings.keeping import Context, Database, Retention, Shared, Storage, StoredResults
from cwm.settings.load import CONFIG_ENV, load
from cwm.settings.telling import Audit, Logging, Metrics, Tokens, Tracing
from cwm.settings.turns import Turns

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
    "Turns",
    "Verification",
    "load",
]
