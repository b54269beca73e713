"""By-reference arguments over stored results on a real database: replaced exactly where they stand."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import open_database
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.budgets import References
from cwm.domain.errors import CwmError, InvalidParameterError
from cwm.services.audit.journal import Journal
from cwm.services.results.references import ByReference, Reference, have_reference
from tests.services.kept import ANN, BOB, Desk, opened
from tests.services.replicas_of import HandClock

VALUES: dict[str, Any] = {"a": [1, None, "é 漢"], "b/c": {"~": True, " ": 1.5}}
POINTERS = {
    "": VALUES,
    "/a": VALUES["a"],
    "/a/2": "é 漢",
    "/b~1c": VALUES["b/c"],
    "/b~1c/~0": True,
    "/b~1c/ ": 1.5,
}


@dataclass(frozen=True, slots=True)
class Filling:
    desk: Desk
    by_reference: ByReference

    async def __call__(self, arguments: dict[str, Any], **how: Any) -> dict[str, Any]:
        given: dict[str, Any] = {"allowed": True, "bounds": References(), **how}
        return await self.by_reference.filled(ANN, "files_write", arguments, **given)


@pytest.fixture
async def fill(sqlite_url: str) -> AsyncIterator[Filling]:
    database, clock = open_database(sqlite_url), HandClock(1_000_000.0)
    journal = Journal(
        SqlAuditLog(database, ChainKeys([b"a secret"])), clock, PrometheusMeter(), InProcessChanges()
    )
    async with opened(sqlite_url, sqlite_url, clock) as desk:
        yield Filling(desk, ByReference(desk.results, journal))
    await database.dispose()


async def code_of(asked: Any) -> str:
    with pytest.raises(CwmError) as refused:
        await asked
    return refused.value.code


@pytest.mark.parametrize("pointer", POINTERS)
@pytest.mark.parametrize("spelled", ["{}#{}", "{}/0#{}", "cwm://results/{}#{}", "cwm://results/{}/0#{}"])
async def test_a_reference_is_replaced_by_the_value_at_its_pointer(
    fill: Filling, pointer: str, spelled: str
) -> None:
    handle = (await fill.desk.keep(json.dumps(VALUES))).handle
    written = pointer.replace(" ", "%20") if spelled.startswith("cwm:") else pointer
    filled = await fill({"x": [{"y": {"$cwm": spelled.format(handle, written)}}, 1], "z": "r_"})
    assert filled == {"x": [{"y": POINTERS[pointer]}, 1], "z": "r_"}


@pytest.mark.parametrize("spelled", ["{}", "{}/0", "cwm://results/{}", "cwm://results/{}/0"])
async def test_a_handle_alone_is_replaced_by_the_text_exactly_as_it_came(fill: Filling, spelled: str) -> None:
    for text in ('{"b" : [1.0, 1],\n "a": "\\u00e9"}', "no JSON", ""):
        handle = (await fill.desk.keep(text, '{"n": 1}')).handle
        assert await fill({"x": {"$cwm": spelled.format(handle)}}) == {"x": text}
    assert await fill({"x": {"$cwm": f"{handle}/1"}}) == {"x": '{"n": 1}'}
    assert await fill({"x": {"$cwm": f"{handle}#/n"}}) == {"x": 1}


async def test_a_value_is_not_searched_for_further_references(fill: Filling) -> None:
    handle = (await fill.desk.keep(json.dumps({"inner": {"$cwm": "r_x#"}}))).handle
    assert await fill({"x": {"$cwm": f"{handle}#"}}) == {"x": {"inner": {"$cwm": "r_x#"}}}


async def test_the_arguments_that_were_sent_stay_as_they_are(fill: Filling) -> None:
    handle = (await fill.desk.keep("text")).handle
    sent = {"x": {"y": [{"$cwm": handle}]}}
    before = copy.deepcopy(sent)
    assert await fill(sent) == {"x": {"y": ["text"]}}
    assert sent == before


async def test_another_users_result_opens_only_where_it_is_shared(fill: Filling) -> None:
    handle = (await fill.desk.keep("text", principal=BOB)).handle
    assert await code_of(fill({"x": {"$cwm": handle}})) == "CWM-2005"


async def test_each_use_counts_although_the_value_is_fetched_once(fill: Filling) -> None:
    handle = (await fill.desk.keep("x" * 98)).handle
    reference = {"$cwm": handle}
    assert await fill({"x": [reference] * 3}, bounds=References(most=3, most_bytes=300))
    for bounds in (References(most=2), References(most_bytes=299)):
        assert await code_of(fill({"x": [reference] * 3}, bounds=bounds)) == "CWM-1003"


async def test_halves_of_surrogate_pairs_are_a_value_as_any_other(fill: Filling) -> None:
    handle = (await fill.desk.keep('["\\ud800"]')).handle
    assert await fill({"x": {"$cwm": f"{handle}#"}}) == {"x": ["\ud800"]}


NAMES = st.text(max_size=5).filter(lambda name: name != "$cwm")
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=5), PLAIN, max_size=3))
def test_no_other_arguments_have_references(arguments: dict[str, Any]) -> None:
    assert not have_reference(arguments)
    assert have_reference({**arguments, "more": [arguments, {"deep": {"$cwm": "r_x#"}}]})


@given(st.text(max_size=60))
def test_whatever_is_written_is_a_reference_or_refused(written: str) -> None:
    with contextlib.suppress(InvalidParameterError):
        pointer = Reference.read({"$cwm": written}, "x").pointer
        assert not pointer or pointer.startswith("/")
