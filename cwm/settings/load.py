"""Builds one snapshot of all settings from the environment and ``cwm.yaml``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cwm.settings.autosave import FREEZE, read_autosave
from cwm.settings.capture import CAPTURE, read_capture
from cwm.settings.document import read_document
from cwm.settings.engine import Engine
from cwm.settings.engines import ENGINES, read_engines
from cwm.settings.fields import Group, SettingsError, in_words
from cwm.settings.front import Security
from cwm.settings.groups import ENV_PREFIX, GROUPS, Reading, Settings, Source, is_secret
from cwm.settings.keep import KEEP, read_keep
from cwm.settings.models import MODELS, read_aliases
from cwm.settings.repairs import REPAIRS, read_repairs
from cwm.settings.tools import RESULTS, TOOLS, read_budgets
from cwm.settings.upstreams import UPSTREAMS, read_upstreams
from cwm.settings.variables import SUFFIX, secret_of

CONFIG_ENV: Final = "CWM_CONFIG"

_OF_OTHER_CLIENTS: Final = "mcpServers"
_IN_THE_FILE_ALONE: Final = (ENGINES, UPSTREAMS, RESULTS, TOOLS, FREEZE, KEEP, MODELS, CAPTURE, REPAIRS)


def load(
    environ: Mapping[str, str] | None = None, config: Path | None = None, *, upstreams: bool = True
) -> Settings:
    """Read settings: environment before YAML file before defaults. Raises SettingsError.

    Without ``upstreams``, the snapshot has none, and their variables may be missing.
    """
    env = os.environ if environ is None else environ
    path = config or Path(env.get(CONFIG_ENV) or "cwm.yaml")
    raw = read_file(path)
    if raw is None and (config is not None or env.get(CONFIG_ENV)):
        raise SettingsError(f"{path} does not exist.")
    return settings_from(raw or b"", env, path, with_upstreams=upstreams)


def read_file(path: Path) -> bytes | None:
    """The content of the file; None when it does not exist. Raises SettingsError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from None


def settings_from(raw: bytes, env: Mapping[str, str], path: Path, *, with_upstreams: bool = True) -> Settings:
    """The settings from ``raw``, the content of ``path``, and the environment. Raises SettingsError."""
    document = read_document(raw, path)
    _require_known(document, path)
    groups: dict[str, Group] = {}
    sources: list[Source] = []
    own_variables = {CONFIG_ENV}
    for title, group in GROUPS.items():
        in_file = document.get(title) or {}
        values: dict[str, Any] = dict(in_file)
        for name in group.model_fields:
            variable = ENV_PREFIX + name.upper()
            own_variables.add(variable)
            if _may_stand_in_a_file(group, name):
                own_variables.add(variable + SUFFIX)
                value = _secret(variable, env)
            else:
                value = env.get(variable) or None
            if value is not None:
                values[name] = value
        try:
            groups[title] = group.model_validate(values)
        except ValidationError as invalid:
            raise SettingsError(_explain(invalid, title, env, path)) from None
        for name, spec in group.model_fields.items():
            variable = ENV_PREFIX + name.upper()
            origin = _origin(group, name, env) or (str(path) if name in in_file else "default")
            masked_value = _as_text(getattr(groups[title], name))
            sources.append(Source(title, name, masked_value, origin, spec.description or ""))
    security = groups["security"]
    assert isinstance(security, Security)
    upstreams, used = read_upstreams(
        document.get(UPSTREAMS) if with_upstreams else None, env, path, link_local=security.allow_link_local
    )
    engine = groups["engine"]
    assert isinstance(engine, Engine)
    engines, used_by_engines = read_engines(document.get(ENGINES), engine, env, path)
    used |= used_by_engines
    unknown = tuple(sorted(v for v in env if v.startswith(ENV_PREFIX) and v not in own_variables | used))
    return Settings(
        **groups,  # type: ignore[arg-type]
        engines=engines,
        upstreams=upstreams,
        budgets=read_budgets(document.get(RESULTS), document.get(TOOLS), path),
        autosave=read_autosave(document.get(FREEZE), path),
        aliases=read_aliases(document.get(MODELS), path),
        capture=read_capture(document.get(CAPTURE), path),
        keep=read_keep(document.get(KEEP), path),
        repairs=read_repairs(document.get(REPAIRS), path),
        sources=tuple(sources),
        unknown_env=unknown,
        upstream_variables=frozenset(used & env.keys()),
        reading=Reading(path.absolute(), env, groups),
    )


def _require_known(document: Mapping[str, Any], path: Path) -> None:
    for title, values in document.items():
        if title == _OF_OTHER_CLIENTS:
            raise SettingsError(
                f"{path} has '{title}', which is for MCP clients; put its servers under '{UPSTREAMS}', "
                "with the same names."
            )
        if title in _IN_THE_FILE_ALONE:
            continue
        if title not in GROUPS:
            groups = ", ".join([*GROUPS, *_IN_THE_FILE_ALONE])
            raise SettingsError(f"{path} has no group '{title}'; the groups are {groups}.")
        if values is not None and not isinstance(values, dict):
            raise SettingsError(f"'{title}' in {path} must contain settings by name.")


def _may_stand_in_a_file(group: type[Group], name: str) -> bool:
    """Whether ``<VARIABLE>_FILE`` is supported: for secrets, unless another setting names the secret's file."""
    return is_secret(group.model_fields[name]) and f"{name}{SUFFIX.lower()}" not in group.model_fields


def _secret(variable: str, env: Mapping[str, str]) -> str | None:
    try:
        return secret_of(variable, env)
    except ValueError as wrong:
        raise SettingsError(f"{wrong}.") from None


def _origin(group: type[Group], name: str, env: Mapping[str, str]) -> str | None:
    variable = ENV_PREFIX + name.upper()
    if env.get(variable):
        return "environment"
    path = env.get(variable + SUFFIX) if _may_stand_in_a_file(group, name) else None
    return path or None


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _explain(invalid: ValidationError, title: str, env: Mapping[str, str], path: Path) -> str:
    group = GROUPS[title]
    first = invalid.errors(include_url=False, include_input=False, include_context=False)[0]
    if not first["loc"]:
        return f"{title}: {in_words(first)}."
    name = str(first["loc"][0])
    place = f"{title}.{name} in {path}"
    if first["type"] == "extra_forbidden":
        matches = get_close_matches(name, group.model_fields, n=1)
        hint = f"; did you mean '{matches[0]}'?" if matches else "."
        return f"{place}: is not a setting of '{title}'{hint}"
    variable = ENV_PREFIX + name.upper()
    if env.get(variable):
        place = variable
    elif _may_stand_in_a_file(group, name) and env.get(variable + SUFFIX):
        place = variable + SUFFIX
    return f"{place}: {in_words(first)}."
