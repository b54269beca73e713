"""What every registry owes: finding windows by filter, order and page."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest

from cwm.domain.window import WindowList, WindowQuery, WindowSort
from cwm.ports.registry import Registry, StoredChunks
from tests.contracts.nouns import IDS, LATER, NOW, a_session, a_window, clone, freeze, remove, stored

pytestmark = pytest.mark.slow

# Name, token count, size in bytes, minutes after NOW: each order is another one.
_SHELF = (("b", 30, 200, 0), ("C", 10, 100, 3), ("a", 20, 300, 1), ("D", 40, 100, 2))

_ORDERS = {
    WindowSort.NAME: ["C", "D", "a", "b"],
    WindowSort.CREATED_AT: ["b", "a", "D", "C"],
    WindowSort.TOKEN_COUNT: ["C", "a", "b", "D"],
    WindowSort.SIZE: ["C", "D", "b", "a"],
}


@pytest.fixture
async def shelf(registry: Registry) -> Registry:
    for name, tokens, size_bytes, minutes in _SHELF:
        await registry.add_session(a_session(name), IDS)
        window = a_window(
            name,
            session_id=name,
            token_count=tokens,
            created_at=NOW + timedelta(minutes=minutes),
            tags=("even",) if tokens in {20, 40} else (),
        )
        await registry.begin_freeze(window, IDS, 0)
        chunks = stored("aa", size_bytes=size_bytes)
        await registry.finish_freeze(window, StoredChunks(chunks.chunks, chunks.storage_tier, {}), LATER)
    return registry


async def _found(registry: Registry, **query: object) -> list[str]:
    found = await registry.windows("acme", WindowQuery(**query))  # type: ignore[arg-type]
    assert found.total == len(found.windows)
    assert found.total_exact
    assert not found.has_more
    return sorted(window.name for window in found.windows)


@pytest.mark.parametrize("sort_by", WindowSort)
async def test_windows_come_in_the_order_asked_for(shelf: Registry, sort_by: WindowSort) -> None:
    for filtered, descending in product((None, "tiny"), (False, True)):
        query = WindowQuery(sort_by=sort_by, descending=descending, model=filtered)
        found = await shelf.windows("acme", query)
        expected = _ORDERS[sort_by][::-1] if descending else _ORDERS[sort_by]
        assert ([window.name for window in found.windows], found.total) == (expected, 4)


@pytest.mark.parametrize("search", [None, "a"])
async def test_pages_join_to_the_whole_list_and_each_tells_the_total(
    registry: Registry, search: str | None
) -> None:
    source = await freeze(registry, "a0", "aa")
    for number in range(1, 7):
        await clone(registry, source, f"a{number}")
    seen: list[str] = []
    for offset in range(0, 9, 3):
        query = WindowQuery(sort_by=WindowSort.SIZE, limit=3, offset=offset, search=search)
        page = await registry.windows("acme", query)
        assert (page.total, page.has_more) == (7, offset < 6)
        seen += [window.name for window in page.windows]
    assert seen == [f"a{number}" for number in range(6, -1, -1)]


async def test_a_page_past_the_end_is_empty_and_tells_the_total(shelf: Registry) -> None:
    for offset in (4, 2**63, 10**30):
        assert await shelf.windows("acme", WindowQuery(offset=offset)) == WindowList([], 4, has_more=False)


async def test_a_listed_window_is_whole(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa", description="d", tags=("x", "y"))
    assert await registry.windows("acme", WindowQuery(tags=("x",))) == WindowList([window], 1, has_more=False)


async def test_every_tag_asked_for_must_be_there(registry: Registry) -> None:
    await freeze(registry, "both", tags=("red", "blue"))
    await freeze(registry, "one", tags=("red", "blue-ish"))
    await freeze(registry, "none")
    assert await _found(registry, tags=("red",)) == ["both", "one"]
    assert await _found(registry, tags=("blue", "red", "red")) == ["both"]
    assert await _found(registry, tags=("red", "green")) == []


async def test_a_tag_is_matched_whole_and_by_case(registry: Registry) -> None:
    await freeze(registry, "w1", tags=("red",))
    for tag in ("RED", "re", "ed", "re_", "r%", "", "red ", "\x00", "\ud800", "red' OR 1=1", "x" * 100_000):
        assert await _found(registry, tags=(tag,)) == [], tag


_SEARCHES: dict[str, list[str]] = {
    "REVIEW": ["by-name-Review", "by-text"],
    "straSSe": ["folded"],
    "CAFÉ": ["folded"],
    "100%": ["percent"],
    "%": ["percent"],
    "a_b": ["underscore"],
    "\\": ["percent"],
    "/": ["percent"],
    "reviewa": [],
    "'; DROP TABLE windows; --": [],
    "\x00": [],
    "\ud800": [],
    "x" * 100_000: [],
    "%" * 3_000: [],
}


async def test_a_search_finds_what_names_and_descriptions_contain(registry: Registry) -> None:
    await freeze(registry, "by-name-Review", description="a thing")
    await freeze(registry, "by-text", description="The code rEvIeW of May")
    await freeze(registry, "folded", description="Straße zum Café")
    await freeze(registry, "percent", description="100% \\ or /")
    await freeze(registry, "underscore", description="a_b, not axb")
    for search, names in _SEARCHES.items():
        assert await _found(registry, search=search) == names, search[:40]


async def test_an_empty_search_finds_everything(shelf: Registry) -> None:
    assert await _found(shelf, search="") == ["C", "D", "a", "b"]


async def test_a_model_is_matched_whole(registry: Registry) -> None:
    await freeze(registry, "w1", model="tiny")
    await freeze(registry, "w2", model="tiny-2")
    assert await _found(registry, model="tiny") == ["w1"]
    assert await _found(registry, model="\x00") == []


async def test_bounds_in_time_leave_out_the_instant_itself(shelf: Registry) -> None:
    first, last = NOW, NOW + timedelta(minutes=3)
    assert await _found(shelf, created_after=first) == ["C", "D", "a"]
    assert await _found(shelf, created_before=last) == ["D", "a", "b"]
    assert await _found(shelf, created_after=first, created_before=last) == ["D", "a"]
    assert await _found(shelf, created_after=first.replace(tzinfo=None)) == ["C", "D", "a"]


async def test_filters_narrow_each_other(shelf: Registry) -> None:
    assert await _found(shelf, tags=("even",), search="d", model="tiny", created_after=NOW) == ["D"]


async def test_what_is_removed_is_found_no_more(shelf: Registry) -> None:
    await remove(shelf, "a")
    assert await _found(shelf, tags=("even",)) == ["D"]
    assert (await shelf.windows("acme", WindowQuery())).total == 3


async def test_failed_windows_of_the_tenant_are_found_the_newest_first(shelf: Registry) -> None:
    for number in range(3):
        for tenant in ("acme", "umbrella"):
            name = f"{tenant}-failed-{number}"
            await shelf.add_session(a_session(name, tenant), IDS)
            at = NOW + timedelta(minutes=10 + number)
            circle = "workspace:red" if number == 1 else "tenant"
            window = a_window(name, tenant, session_id=name, created_at=at, circle=circle)
            await shelf.begin_freeze(window, IDS, 0)
            await shelf.fail_freeze(window, "The tier is full.", LATER)

    async def names(most: int, circles: frozenset[str] | None = None) -> list[str]:
        found = await shelf.failed_windows("acme", most, circles)
        assert {each.failure for each in found} <= {"The tier is full."}
        return [each.name for each in found]

    assert await names(100) == ["acme-failed-2", "acme-failed-1", "acme-failed-0"]
    assert await names(2) == ["acme-failed-2", "acme-failed-1"]
    assert await names(100, frozenset({"tenant"})) == ["acme-failed-2", "acme-failed-0"]
    assert await names(1, frozenset({"workspace:red"})) == ["acme-failed-1"]
    assert await names(100, frozenset()) == []
    assert await shelf.failed_windows("nobody", 100) == []
