"""From the environment and ``cwm.yaml`` to one snapshot of every setting."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cwm.domain.budgets import Budgets
from cwm.domain.upstream import UpstreamSpec
from cwm.settings.document import read_document
from cwm.settings.errors import SettingsError
from cwm.settings.groups import (
    ENV_PREFIX,
    GROUPS,
    Context,
    Database,
    Engine,
    Group,
    Http,
    Isolation,
    LocalEngine,
    Logging,
    Retention,
    Shared,
    Storage,
    StoredResults,
    Thaw,
    Tokens,
    Tracing,
    Verification,
)
from cwm.settings.tools import RESULTS, TOOLS, read_budgets
from cwm.settings.upstreams import UPSTREAMS, read_upstreams

CONFIG_ENV: Final = "CWM_CONFIG"

_OF_OTHER_CLIENTS: Final = "mcpServers"
_IN_THE_FILE_ALONE: Final = (UPSTREAMS, RESULTS, TOOLS)


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
    """What a snapshot was read from, and the groups as they were before flags were laid over them.

    The file need not exist.
    """

    config: Path
    environ: Mapping[str, str]
    groups: Mapping[str, Group]


@dataclass(frozen=True, slots=True)
class Settings:
    """One consistent snapshot of every setting; ``reading`` is None for one that was made, not read."""

    http: Http = field(default_factory=Http)
    database: Database = field(default_factory=Database)
    engine: Engine = field(default_factory=Engine)
    verification: Verification = field(default_factory=Verification)
    thaw: Thaw = field(default_factory=Thaw)
    retention: Retention = field(default_factory=Retention)
    isolation: Isolation = field(default_factory=Isolation)
    storage: Storage = field(default_factory=Storage)
    shared: Shared = field(default_factory=Shared)
    stored_results: StoredResults = field(default_factory=StoredResults)
    tokens: Tokens = field(default_factory=Tokens)
    context: Context = field(default_factory=Context)
    local_engine: LocalEngine = field(default_factory=LocalEngine)
    logging: Logging = field(default_factory=Logging)
    tracing: Tracing = field(default_factory=Tracing)
    upstreams: tuple[UpstreamSpec, ...] = ()
    budgets: Budgets = field(default_factory=Budgets)
    sources: tuple[Source, ...] = ()
    unknown_env: tuple[str, ...] = ()
    reading: Reading | None = field(default=None, repr=False, compare=False)

    def shared_store_url(self) -> str | None:
        """The Redis or Valkey that gateways share; None for a gateway on its own."""
        url = self.shared.shared_store_url or self.storage.redis_url
        return None if url is None else url.get_secret_value()


def load(
    environ: Mapping[str, str] | None = None, config: Path | None = None, *, upstreams: bool = True
) -> Settings:
    """Read the environment over the YAML file over the defaults. Raises SettingsError.

    Without ``upstreams`` there are none in it, and the variables they need may be missing.
    """
    env = os.environ if environ is None else environ
    path = config or Path(env.get(CONFIG_ENV, "cwm.yaml"))
    raw = read_file(path)
    if raw is None and (config is not None or CONFIG_ENV in env):
        raise SettingsError(f"{path} does not exist.")
    return settings_from(raw or b"", env, path, with_upstreams=upstreams)


def read_file(path: Path) -> bytes | None:
    """What the file holds; None when there is none. Raises SettingsError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from None


def settings_from(raw: bytes, env: Mapping[str, str], path: Path, *, with_upstreams: bool = True) -> Settings:
    """The settings that ``raw``, the content of ``path``, and the environment make. Raises SettingsError."""
    document = read_document(raw, path)
    _require_known(document, path)
    groups: dict[str, Group] = {}
    sources: list[Source] = []
    known = {CONFIG_ENV}
    for title, group in GROUPS.items():
        in_file = document.get(title) or {}
        values: dict[str, Any] = dict(in_file)
        for name in group.model_fields:
            variable = ENV_PREFIX + name.upper()
            known.add(variable)
            if variable in env and env[variable] != "":
                values[name] = env[variable]
        try:
            groups[title] = group.model_validate(values)
        except ValidationError as invalid:
            raise SettingsError(_explain(invalid, title, env, path)) from None
        for name, spec in group.model_fields.items():
            variable = ENV_PREFIX + name.upper()
            origin = "environment" if env.get(variable) else str(path) if name in in_file else "default"
            value = getattr(groups[title], name)
            shown = "" if value is None else str(value)
            sources.append(Source(title, name, shown, origin, spec.description or ""))
    upstreams, used = read_upstreams(document.get(UPSTREAMS) if with_upstreams else None, env, path)
    unknown = tuple(sorted(v for v in env if v.startswith(ENV_PREFIX) and v not in known | used))
    return Settings(
        **groups,  # type: ignore[arg-type]
        upstreams=upstreams,
        budgets=read_budgets(document.get(RESULTS), document.get(TOOLS), path),
        sources=tuple(sources),
        unknown_env=unknown,
        reading=Reading(path.absolute(), env, groups),
    )


def _require_known(document: Mapping[str, Any], path: Path) -> None:
    for title, values in document.items():
        if title == _OF_OTHER_CLIENTS:
            raise SettingsError(
                f"{path} has '{title}', which is for MCP clients; put the servers it holds under '{UPSTREAMS}', "
                "by the same names."
            )
        if title in _IN_THE_FILE_ALONE:
            continue
        if title not in GROUPS:
            groups = ", ".join([*GROUPS, *_IN_THE_FILE_ALONE])
            raise SettingsError(f"{path} has no group '{title}'; the groups are {groups}.")
        if values is not None and not isinstance(values, dict):
            raise SettingsError(f"'{title}' in {path} must hold settings by name.")


def _explain(invalid: ValidationError, group: str, env: Mapping[str, str], path: Path) -> str:
    first = invalid.errors(include_url=False, include_input=False)[0]
    name = str(first["loc"][0]) if first["loc"] else group
    variable = ENV_PREFIX + name.upper()
    where = variable if env.get(variable) else f"{group}.{name} in {path}"
    return f"{where}: {first['msg']}."
