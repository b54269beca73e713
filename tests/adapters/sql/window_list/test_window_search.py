"""However a list is read, from an index, from what is few, or row by row: it is what a plain filter and sort would give."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest
from sqlalchemy import Connection, text, update

from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.tables.window_lists import window_counts, window_terms
from cwm.adapters.sql.tables.window_lists import window_search as window_search_table
from cwm.adapters.sql.window_list import search as window_search
from cwm.adapters.sql.window_list.search import RowLimits
from cwm.adapters.sql.window_list.terms import RAREST, grams_of
from cwm.domain.window import Window, WindowList, WindowQuery, WindowSort
from tests.contracts.nouns import NOW, clone, freeze, remove

pytestmark = pytest.mark.slow

# From always sorting all that match to always reading row by row.
_LIMITS = [
    RowLimits(counted=5, gathered=100, walked=0, looked_up=0, seen=0),
    RowLimits(counted=5, gathered=0, walked=100, looked_up=100),
    RowLimits(counted=5, gathered=2, walked=7, looked_up=5, seen=2),
    RowLimits(counted=0, gathered=0, walked=0, looked_up=0, seen=0),
    RowLimits(counted=5, gathered=0, walked=2, looked_up=1, passed=100, walked_on=12),
]
_LIMIT_IDS = ["sorted", "walked", "mixed", "least", "walked on"]
_TAGS = ((), ("red",), ("blue",), ("red", "blue"), ("rare",), ("red", "rare"), ("none",))
_SEARCHES = (None, "oak", "OAK T", "ß", "s", "w-1", "nowhere", "tree of 1")
_BOUNDS = (None, 4, 11)


@pytest.fixture
async def shelf(registry: SqlRegistry, database: Database) -> list[Window]:
    """Windows with much in common: every order has ties."""
    first = await freeze(registry, "w-00", "aa", description="Oak tree of 1", tags=("red",))
    clones = [
        await clone(
            registry,
            first,
            f"w-{number:02d}",
            created_at=NOW + timedelta(minutes=number // 2),
            token_count=number % 3,
            total_size_bytes=number % 5 * 2**33,
            model="tiny" if number % 3 else "large",
            description=("Oak Tree", "Straße", "a tree of 1 oak", "")[number % 4],
            tags=tuple(tag for tag, every in (("red", 2), ("blue", 3), ("rare", 7)) if number % every == 0),
        )
        for number in range(1, 16)
    ]
    await freeze(registry, "w-other", tenant="other", description="Oak tree", tags=("red",))
    await _analyze(database)
    return [first, *clones]


def _expected(shelf: list[Window], query: WindowQuery) -> list[Window]:
    matching = [
        window
        for window in shelf
        if set(query.tags) <= set(window.tags)
        and query.model in {None, window.model}
        and (query.created_after is None or window.created_at > query.created_after)
        and (query.created_before is None or window.created_at < query.created_before)
        and (query.search or "").casefold() in f"{window.name}\x1f{window.description}".casefold()
    ]

    def place(window: Window) -> tuple[object, str]:
        return query.mark(window).value, window.name

    return sorted(matching, key=place, reverse=query.descending)


def _questions() -> list[WindowQuery]:
    chance = random.Random(6)
    every = list(
        product(_TAGS, (None, "tiny", "huge"), _BOUNDS, _BOUNDS, _SEARCHES, WindowSort, (True, False))
    )
    return [
        WindowQuery(
            tags=tags,
            model=model,
            created_after=None if after is None else NOW + timedelta(minutes=after // 2),
            created_before=None if before is None else NOW + timedelta(minutes=before // 2),
            sort_by=sort,
            descending=descending,
            limit=chance.choice((1, 3, 20)),
            offset=chance.choice((0, 0, 1, 4)),
            search=search,
        )
        for tags, model, after, before, search, sort, descending in chance.sample(every, 150)
    ] + [
        WindowQuery(tags=tags, sort_by=sort, limit=4, search=search)
        for tags, sort, search in product(_TAGS[:3], WindowSort, (None, "oak"))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("limits", _LIMITS, ids=_LIMIT_IDS)
async def test_a_page_is_what_a_plain_filter_and_sort_would_give(
    database: Database, shelf: list[Window], limits: RowLimits
) -> None:
    for query in _questions():
        expected = _expected(shelf, query)
        found = await _find(database, query, limits)
        page = expected[query.offset : query.offset + query.limit]
        assert [window.name for window in found.windows] == [window.name for window in page], query
        assert found.has_more == (len(expected) > query.offset + query.limit), query
        _require_total(found, len(expected), query)


def _require_total(found: WindowList, matching: int, query: WindowQuery) -> None:
    if found.total_exact:
        assert found.total == matching, query
    else:
        assert found.total <= matching, query


@pytest.mark.slow
@pytest.mark.parametrize("limits", _LIMITS, ids=_LIMIT_IDS)
async def test_pages_by_mark_join_to_the_whole_list(
    database: Database, shelf: list[Window], limits: RowLimits
) -> None:
    for query in (replace(question, offset=0, limit=3) for question in _questions()[::4]):
        seen: list[str] = []
        found = await _find(database, query, limits)
        while True:
            seen += [window.name for window in found.windows]
            if not found.has_more:
                break
            onward = replace(query, after=query.mark(found.windows[-1]))
            found = await _find(database, onward, limits)
            _require_total(found, len(_expected(shelf, query)), query)
        assert seen == [window.name for window in _expected(shelf, query)], query


@pytest.mark.parametrize(
    ("words", "walked"), [pytest.param("oak", True, id="common"), pytest.param("yew", False, id="rare")]
)
async def test_what_is_common_but_far_from_where_the_list_begins_is_walked_to_and_what_is_rare_gathered(
    registry: SqlRegistry, database: Database, words: str, walked: bool
) -> None:
    await freeze(registry, "a-first")
    await _number_from(database, "a-first", 50_000)
    source = await freeze(registry, "w-00", description="an oak")
    for number in range(1, 40):
        description = "a yew" if number in {5, 6} else "an oak" if number < 20 else "a lime"
        await clone(registry, source, f"w-{number:02d}", description=description)
    await _analyze(database)
    limits = RowLimits(gathered=0, walked=5, passed=2, walked_on=30)
    query = WindowQuery(search=words, sort_by=WindowSort.NAME, limit=1)
    found = await _find(database, query, limits)
    assert [window.name for window in found.windows] == ["w-19" if walked else "w-06"]
    assert found.total_exact != walked
    assert (await _find(database, query, replace(limits, passed=0))).total_exact


async def test_a_list_by_mark_is_not_moved_by_what_comes_and_goes(registry: SqlRegistry) -> None:
    source = await freeze(registry, "b")
    for name in ("d", "f", "h"):
        await clone(registry, source, name)
    query = WindowQuery(sort_by=WindowSort.NAME, descending=False, limit=2)
    page = await registry.windows("acme", query)
    await clone(registry, source, "a")
    await remove(registry, "d")
    onward = await registry.windows("acme", replace(query, after=query.mark(page.windows[-1])))
    assert [window.name for window in onward.windows] == ["f", "h"]
    assert onward.total == 4


async def test_what_is_kept_for_lists_goes_with_its_window(registry: SqlRegistry, database: Database) -> None:
    source = await freeze(registry, "w1", description="some words", tags=("red", "blue"))
    await clone(registry, source, "w2")
    for name in ("w1", "w2"):
        await remove(registry, name)
    assert await database.read(lambda c: c.execute(window_terms.select()).all()) == []
    counts = await database.read(lambda c: c.execute(window_counts.select()).all())
    assert [tuple(row) for row in counts] == [("acme", "", 0)]
    again = await freeze(registry, "w3", description="other")
    assert (await registry.windows("acme", WindowQuery(search="words"))).windows == []
    assert (await registry.windows("acme", WindowQuery(search="other"))).windows == [again]


async def test_postgres_is_asked_for_the_rarest_pieces_of_what_is_searched(postgres_url: str) -> None:
    database = open_database(postgres_url)
    registry = SqlRegistry(database)
    source = await freeze(registry, "w", description="words that all have")
    for number in range(30):
        await clone(registry, source, f"w{number}", description="words that all have")
    asked = grams_of("acme", "words that all have, zebra", ())
    try:
        await _analyze(database)
        rarest = await database.read(lambda c: c.execute(text(RAREST), {"grams": asked}).scalar_one())
    finally:
        await database.dispose()
    assert len(rarest) == 5
    assert set(rarest) < set(asked) - set(grams_of("acme", "words that all have", ()))


@pytest.mark.slow
async def test_windows_that_come_and_go_at_once_are_counted_right(
    registry: SqlRegistry, other_replica: SqlRegistry
) -> None:
    source = await freeze(registry, "source", tags=("red", "blue"))
    names = [f"w{number}" for number in range(20)]
    await asyncio.gather(
        *(clone(each, source, name) for name, each in zip(names, (registry, other_replica) * 10, strict=True))
    )
    await asyncio.gather(
        *(
            remove(each, name)
            for name, each in zip(names[:15], (other_replica, registry, registry) * 5, strict=True)
        )
    )
    for query in (WindowQuery(), WindowQuery(tags=("red",)), WindowQuery(model="tiny")):
        assert (await registry.windows("acme", query)).total == 6


async def _number_from(database: Database, name: str, number: int) -> None:
    """As if as many windows had come and gone before: SQLite's next id follows the highest."""

    def renumber(connection: Connection) -> None:
        if connection.dialect.name == "sqlite":
            listed = window_search_table.c.name == name
            connection.execute(update(window_search_table).where(listed).values(id=number))

    await database.write(renumber)


async def _analyze(database: Database) -> None:
    """What Postgres does by itself, in its own time."""

    def analyze(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("ANALYZE window_grams"))

    await database.write(analyze)


async def _find(database: Database, query: WindowQuery, limits: RowLimits) -> WindowList:
    return await database.read(lambda c: window_search.find(c, "acme", query, limits))
