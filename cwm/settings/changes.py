"""What differs between two snapshots of settings, as text in which secrets are masked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

from cwm.domain.budgets import Budgets
from cwm.domain.engine_rules import EngineRules
from cwm.domain.tool_policy import ToolPolicies
from cwm.settings.autosave import AUTO
from cwm.settings.capture import CAPTURE
from cwm.settings.engines import ENGINES
from cwm.settings.groups import Settings
from cwm.settings.keep import KEEP
from cwm.settings.models import ALIASES
from cwm.settings.repairs import REPAIRS
from cwm.settings.tools import RESULTS, TOOLS
from cwm.settings.upstreams import UPSTREAMS

MASK: Final = "[hidden]"
_MOST_CHARS: Final = 400
# A shorter value is hardly a secret, and its letters are in every word.
_SHORTEST: Final = 4


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A changed setting, such as ``limits.rate_limit_tenant`` or ``upstreams.docs``.

    ``before`` and ``after`` are at most 400 characters, without secrets; empty where there was or is none. Of an
    upstream or a policy that stays they have the fields that differ.
    """

    name: str
    before: str
    after: str


def changes_between(old: Settings, new: Settings, names: Iterable[str]) -> list[SettingChange]:
    """The changes of engines, upstreams, budgets and policies, one by one, of automatic windows and of what is kept by tenant, of models' aliases, of repairs, and of the settings ``names`` (``group.field``)."""
    secrets = sorted(old.secrets() | new.secrets(), key=len, reverse=True)
    return [
        SettingChange(name, *(_masked(text, secrets) for text in _texts(before, after)))
        for name, before, after in (
            *_by_name(ENGINES, *(_own_of(each) for each in (old, new))),
            *_by_name(UPSTREAMS, *({spec.name: spec for spec in each.upstreams} for each in (old, new))),
            *_different(RESULTS, *(_without_tools(each.budgets) for each in (old, new))),
            *_by_name(TOOLS, old.budgets.policies.by_name, new.budgets.policies.by_name),
            *_different(AUTO, old.autosave.default, new.autosave.default),
            *_by_name(f"{AUTO}.tenants", old.autosave.by_tenant, new.autosave.by_tenant),
            *_by_name(ALIASES, old.aliases.by_pattern, new.aliases.by_pattern),
            *_different(CAPTURE, old.capture, new.capture),
            *_different(KEEP, old.keep.default, new.keep.default),
            *_by_name(f"{KEEP}.tenants", old.keep.by_tenant, new.keep.by_tenant),
            *_different(REPAIRS, old.repairs, new.repairs),
            *(each for name in names for each in _different(name, _setting(old, name), _setting(new, name))),
        )
    ]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine does not share with the others."""

    url: str
    lmcache: str
    rules: EngineRules
    files: str
    api_key: str = field(repr=False)
    file_digest: str = field(repr=False)


def _own_of(settings: Settings) -> dict[str, EngineSettings]:
    return {
        name: EngineSettings(
            each.vllm_url if each.dns is None else f"every {each.vllm_url}",
            each.lmcache_url,
            each.rules,
            ", ".join(map(str, each.files)),
            "" if each.vllm_api_key is None else each.vllm_api_key.get_secret_value(),
            each.file_digest,
        )
        for name, each in settings.engines.items()
    }


def _setting(settings: Settings, name: str) -> Any:
    title, _, own_name = name.partition(".")
    return getattr(getattr(settings, title), own_name)


def _different(name: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if before != after:
        yield name, before, after


def _by_name(title: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    if old == new:
        # The first of two patterns that match a tool counts.
        yield from _different(title, list(old), list(new))
    for name in sorted(old.keys() | new.keys()):
        yield from _different(f"{title}.{name}", old.get(name), new.get(name))


def _texts(before: Any, after: Any) -> tuple[str, str]:
    if not is_dataclass(before) or not is_dataclass(after):
        return _text(before), _text(after)
    names = [each.name for each in fields(before) if getattr(before, each.name) != getattr(after, each.name)]
    printable = {each.name for each in fields(before) if each.repr}
    return (
        _joined({name: getattr(before, name) if name in printable else MASK for name in names}),
        _joined({name: getattr(after, name) if name in printable else MASK for name in names}),
    )


def _joined(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _masked(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, MASK)
    return text[:_MOST_CHARS]


def _without_tools(budgets: Budgets) -> Budgets:
    return replace(budgets, policies=ToolPolicies(budgets.policies.default))
