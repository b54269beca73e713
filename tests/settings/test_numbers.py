"""Every number that can be set: what no part of the gateway can take is refused, and the largest that is allowed runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast, get_args

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cwm.adapters.local.clock import SystemClock
from cwm.domain.principal import Principal
from cwm.domain.results import Part, PartKind
from cwm.settings import GROUPS, Settings, SettingsError, load
from cwm.settings.load import settings_from
from cwm.settings.tools import BudgetFields, CacheFields, ReferenceFields
from cwm.settings.upstreams import UpstreamFields
from cwm.wiring.lifetime import Drain, running
from cwm.wiring.parts import build_parts
from tests.transport.mcp.gateway import nobody_listens

FILE: Final = Path("cwm.yaml")
UNTHINKABLE: Final = (".inf", "-.inf", ".nan", "1.0e+300", str(10**30), str(10**400))
BUDGETS: Final = ("max_tokens", "preview_tokens")


def is_number(spec: FieldInfo) -> bool:
    kinds = {spec.annotation, *get_args(spec.annotation)}
    kinds |= {inner for kind in kinds for inner in get_args(kind)}
    return bool(kinds & {int, float})


def most(spec: FieldInfo) -> int | float:
    """The least of its bounds, in the type that the field has."""
    inner = [each for kind in get_args(spec.annotation) for each in getattr(kind, "__metadata__", ())]
    bounds: list[Any] = [
        bound.le
        for each in [*spec.metadata, *inner]
        for bound in (each.metadata if isinstance(each, FieldInfo) else [each])
        if isinstance(bound, annotated_types.Le)
    ]
    assert bounds, "a number without a bound"
    return cast("int | float", min(bounds))


def numbers(fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    return (name for name, spec in fields.items() if is_number(spec))


IN_GROUPS: Final = [(title, name) for title, group in GROUPS.items() for name in numbers(group.model_fields)]
IN_THE_FILE: Final = [
    *(("results", name) for name in numbers(BudgetFields.model_fields)),
    ("results", "window_tokens"),
    ("results", "window_share"),
    *(("results.references", name) for name in numbers(ReferenceFields.model_fields)),
    *(("tools.echo", name) for name in numbers(BudgetFields.model_fields)),
    *(("tools.echo.cache", name) for name in numbers(CacheFields.model_fields)),
    *(("upstreams.files", name) for name in numbers(UpstreamFields.model_fields)),
]


def nested(place: str, value: Any) -> Any:
    for name in reversed(place.split(".")):
        value = {name: value}
    return value


def test_there_are_numbers_to_look_at() -> None:
    assert len(IN_GROUPS) > 40
    assert len(IN_THE_FILE) > 10


@pytest.mark.parametrize(("group", "name"), IN_GROUPS)
def test_a_number_that_nothing_can_be_done_with_is_refused_by_name(group: str, name: str) -> None:
    variable = f"CWM_{name.upper()}"
    for value in UNTHINKABLE:
        with pytest.raises(SettingsError, match=rf"{group}\.{name} in cwm\.yaml: \S"):
            settings_from(f"{group}: {{{name}: {value}}}".encode(), {}, FILE)
        given = value.replace(".inf", "inf").replace(".nan", "nan")
        with pytest.raises(SettingsError, match=rf"{variable}: \S"):
            load({variable: given})


@pytest.mark.parametrize(("place", "name"), IN_THE_FILE)
def test_so_is_one_that_stands_in_the_file_alone(place: str, name: str) -> None:
    for value in UNTHINKABLE:
        fields = {"command": "x"} if place.startswith("upstreams") else {}
        document = json.dumps(nested(place, {**fields, name: "VALUE"})).replace('"VALUE"', value)
        with pytest.raises(SettingsError, match=rf"{place}\.{name} in cwm\.yaml: \S"):
            settings_from(document.encode(), {}, FILE)


def largest(folder: Path, url: str) -> Settings:
    document: dict[str, Any] = {title: {} for title in GROUPS}
    for title, name in IN_GROUPS:
        document[title][name] = most(GROUPS[title].model_fields[name])
    document["http"]["port"] = 0
    document["engine"] |= {"vllm_url": url, "lmcache_url": url, "coordinator_url": url}
    document["isolation"]["secret"] = "a test's secret"
    document["database"]["db_path"] = str(folder / "cwm.db")
    document["results"] = fields_at_most(BudgetFields)
    return settings_from(json.dumps(document).encode(), {}, folder / "cwm.yaml")


def fields_at_most(fields: type[BaseModel]) -> dict[str, Any]:
    specs = fields.model_fields
    return {name: most(specs[name]) for name in numbers(specs) if name not in BUDGETS}


@pytest.mark.slow
async def test_a_gateway_with_the_largest_of_every_number_looks_after_what_it_keeps(tmp_path: Path) -> None:
    with nobody_listens() as url:
        settings = largest(tmp_path, url)
        parts = build_parts(settings)
        async with running(settings, parts, Drain(settings.http.drain_seconds, SystemClock())):
            policy, part = settings.budgets.policies.default, Part(PartKind.TEXT, "text/plain", b"kept")
            ann = Principal("default", "ann")
            kept = await parts.services.results.keep(ann, "echo", "a1", [part], policy)
            page = await parts.services.results.read(ann, budget_tokens=100, handle=kept.handle)
            assert page.text == "kept"
            assert await parts.base.audit_upkeep.prune() == 0
            assert await parts.upkeep.reconcile.retain(dry_run=False) == []
