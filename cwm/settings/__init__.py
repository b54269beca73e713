"""Settings: the only reader of the environment and of ``cwm.yaml``.

A value comes from the environment (``CWM_<FIELD>``, upper case), else from ``cwm.yaml`` (``<group>: {<field>:
…}``), else from its default; ``Settings.sources`` records which. Upstream servers are configured in the file only.
``CWM_CONFIG`` names a file other than ``./cwm.yaml``.
"""

from __future__ import annotations

from cwm.settings.auth import Auth
from cwm.settings.engine import ABSENT, Engine, Isolation, LocalEngine, Verification
from cwm.settings.fields import Group, SettingsError
from cwm.settings.front import Http, Limits, Security
from cwm.settings.groups import ENV_PREFIX, GROUPS, Settings
from cwm.settings.keeping import Context, Database, Retention, Shared, Storage, StoredResults, Tasks
from cwm.settings.load import CONFIG_ENV, load
from cwm.settings.telling import Logging, Tokens, Tracing

__all__ = [
    "ABSENT",
    "CONFIG_ENV",
    "ENV_PREFIX",
    "GROUPS",
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
    "Retention",
    "Security",
    "Settings",
    "SettingsError",
    "Shared",
    "Storage",
    "StoredResults",
    "Tasks",
    "Tokens",
    "Tracing",
    "Verification",
    "load",
]
