"""Every setting that has an environment variable, by group.

Each group is frozen and goes to the adapters that need it.
"""

from __future__ import annotations

from typing import Final, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from cwm.settings.auth import Auth
from cwm.settings.engine import Engine, Isolation, LocalEngine, Thaw, Verification
from cwm.settings.front import Http, Limits, Security
from cwm.settings.group import Group
from cwm.settings.keeping import Context, Database, Retention, Shared, Storage, StoredResults
from cwm.settings.telling import Audit, Logging, Metrics, Tokens, Tracing
from cwm.settings.turns import Turns

ENV_PREFIX: Final = "CWM_"


def is_secret(spec: FieldInfo) -> bool:
    return SecretStr in {spec.annotation, *get_args(spec.annotation)}


GROUPS: dict[str, type[Group]] = {
    group.title: group
    for group in (
        Http,
        Auth,
        Security,
        Database,
        Engine,
        Verification,
        Thaw,
        Retention,
        Audit,
        Isolation,
        Storage,
        Shared,
        StoredResults,
        Tokens,
        Context,
        Limits,
        Turns,
        LocalEngine,
        Logging,
        Metrics,
        Tracing,
    )
}
