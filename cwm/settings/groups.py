"""A snapshot of all settings, by group. Each group is frozen and goes to the adapters that need it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args, get_type_hints
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from cwm.domain.autosave import AutosavePolicies
from cwm.domain.budgets import Budgets
from cwm.domain.conversation import CapturePolicies
from cwm.domain.habits import RepairPolicies
from cwm.domain.keep import KeepPolicies
from cwm.domain.model_aliases import ModelAliases
from cwm.domain.principal import TENANT
from cwm.domain.upstream import UpstreamSpec
from cwm.domain.visibility import PRIVATE
from cwm.settings.auth import Auth
from cwm.settings.engine import Engine, Isolation, LocalEngine, Thaw, Verification
from cwm.settings.engines import EngineEntry
from cwm.settings.fields import Group
from cwm.settings.front import Http, Limits, Security
from cwm.settings.keeping import Context, Database, Retention, Shared, Storage, StoredResults, Tasks
from cwm.settings.telling import Audit, Logging, Metrics, Tokens, Tracing
from cwm.settings.turns import Turns

ENV_PREFIX: Final = "CWM_"

_SCHEME: Final = re.compile(r"^(?:bearer|basic|token)\s+", re.IGNORECASE)
_NAMED_SO: Final = re.compile(r"secret|token|passw|key|credential|auth", re.IGNORECASE)


def is_secret(spec: FieldInfo) -> bool:
    return SecretStr in {spec.annotation, *get_args(spec.annotation)}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from, and the value with secrets masked."""

    group: str
    name: str
    value: str
    origin: str
    description: str

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()


@dataclass(frozen=True, slots=True, repr=False)
class Reading:
    """What a snapshot was read from, and the groups before command-line flags were applied.

    The file need not exist.
    """

    config: Path
    environ: Mapping[str, str]
    groups: Mapping[str, Group]


@dataclass(frozen=True, slots=True)
class Settings:
    """One consistent snapshot of all settings. ``reading`` is None for a snapshot that was built in code."""

    http: Http = field(default_factory=Http)
    auth: Auth = field(default_factory=Auth)
    security: Security = field(default_factory=Security)
    database: Database = field(default_factory=Database)
    engine: Engine = field(default_factory=Engine)
    verification: Verification = field(default_factory=Verification)
    thaw: Thaw = field(default_factory=Thaw)
    retention: Retention = field(default_factory=Retention)
    audit: Audit = field(default_factory=Audit)
    isolation: Isolation = field(default_factory=Isolation)
    storage: Storage = field(default_factory=Storage)
    shared: Shared = field(default_factory=Shared)
    stored_results: StoredResults = field(default_factory=StoredResults)
    tasks: Tasks = field(default_factory=Tasks)
    tokens: Tokens = field(default_factory=Tokens)
    context: Context = field(default_factory=Context)
    limits: Limits = field(default_factory=Limits)
    turns: Turns = field(default_factory=Turns)
    local_engine: LocalEngine = field(default_factory=LocalEngine)
    logging: Logging = field(default_factory=Logging)
    metrics: Metrics = field(default_factory=Metrics)
    tracing: Tracing = field(default_factory=Tracing)
    engines: Mapping[str, EngineEntry] = field(default_factory=dict)
    """The engines by name; empty if there is the one of :attr:`engine`."""
    starts_engines: bool = False
    """Whether this process has started the engines, so that the file's do not count."""
    upstreams: tuple[UpstreamSpec, ...] = ()
    budgets: Budgets = field(default_factory=Budgets)
    autosave: AutosavePolicies = field(default_factory=AutosavePolicies)
    aliases: ModelAliases = field(default_factory=ModelAliases)
    capture: CapturePolicies = field(default_factory=CapturePolicies)
    keep: KeepPolicies = field(default_factory=KeepPolicies)
    repairs: RepairPolicies = field(default_factory=RepairPolicies)
    sources: tuple[Source, ...] = ()
    unknown_env: tuple[str, ...] = ()
    upstream_variables: frozenset[str] = frozenset()
    """Environment variables that upstreams take values from. They usually hold secrets."""
    reading: Reading | None = field(default=None, repr=False, compare=False)

    def shared_store_url(self) -> str | None:
        """URL of the Redis or Valkey that gateways share; None for a gateway on its own."""
        url = self.shared.shared_store_url or self.storage.redis_url
        return None if url is None else url.get_secret_value()

    def serves_console(self) -> bool:
        """Whether pages for browsers are served: where nobody has to say who they are, or people can."""
        return self.http.console and (self.auth.signs_in or not self.auth.required)

    def session_visibility(self) -> str:
        """The default visibility of sessions."""
        return self.isolation.session_visibility or (PRIVATE if self.auth.required else TENANT)

    def secrets(self) -> frozenset[str]:
        """Every value that must never be shown, including passwords inside URLs."""
        values = [value for title in GROUPS for _, value in getattr(self, title)]
        values += [engine.vllm_api_key for engine in self.engines.values()]
        secret = {value.get_secret_value() for value in values if isinstance(value, SecretStr)}
        secret |= set(self.database.registry_keys())
        plain = {value for value in values if isinstance(value, str)}
        return frozenset(secret | _passwords(secret | plain) | _secrets_of(self.upstreams))


GROUPS: Final[Mapping[str, type[Group]]] = {
    name: hint
    for name, hint in get_type_hints(Settings).items()
    if isinstance(hint, type) and issubclass(hint, Group)
}
"""The groups of settings, each under its name in :class:`Settings`, which is also its key in ``cwm.yaml``."""


def _passwords(urls: Iterable[str]) -> set[str]:
    """Passwords inside URLs, both as written and percent-decoded."""
    values = set()
    for url in urls:
        try:
            password = urlsplit(url).password
        except ValueError:
            continue
        if password:
            values |= {password, unquote(password)}
    return values


def _secrets_of(upstreams: Iterable[UpstreamSpec]) -> set[str]:
    """All headers and token exchange secrets.

    Of the environment of stdio upstreams, the variables named like secrets.
    """
    values = set()
    for spec in upstreams:
        values |= {_SCHEME.sub("", value) for value in spec.headers.values()}
        values |= {value for name, value in spec.env.items() if _NAMED_SO.search(name)}
        if spec.exchange is not None:
            values.add(spec.exchange.client_secret)
    return values
