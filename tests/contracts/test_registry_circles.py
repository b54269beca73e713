"""What every registry owes: lists of what is in some circles, and nothing of what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Final

import pytest

from cwm.domain.errors import InvalidParameterError
from cwm.domain.session import Session, SessionMark, SessionQuery, SessionState
from cwm.domain.window import Window, WindowQuery, WindowSort
from cwm.ports.registry import Dependents, Registry
from tests.contracts.nouns import IDS, LATER, NOW, a_session, clone, freeze, remove

pytestmark = pytest.mark.slow

CIRCLES: Final = ("owner:ann", "owner:bob", "workspace:design", "tenant")
SOME: Final = (
    (),
    ("owner:ann",),
    ("owner:ann", "tenant"),
    ("owner:bob", "workspace:design", "tenant"),
    ("owner:nobody", "workspace:none"),
    CIRCLES,
)


@pytest.fixture
async def sessions(registry: Registry) -> list[Session]:
    """The newest first, with each state in each circle."""
    added = []
    for number, (state, circle) in enumerate(product((SessionState.ACTIVE, SessionState.EXPIRED), CIRCLES)):
        session = a_session(f"s{number}", state=state, circle=circle)
        session = replace(session, token_count=0, created_at=NOW + timedelta(seconds=number * 7 % 5))
        added.append(await registry.add_session(session, ()))
    return sorted(added, key=lambda each: (each.created_at, each.id), reverse=True)


@pytest.fixture
async def windows(registry: Registry) -> list[Window]:
    """Three in each circle, in an order by name, time and tokens of its own."""
    frozen = []
    for number in range(12):
        tags = ("red",) if number % 2 else ()
        window = await freeze(
            registry,
            f"w{number * 5 % 12:02}",
            ids=IDS[: 20 + number * 7 % 12],
            created_at=NOW + timedelta(minutes=number),
            tags=tags,
            circle=CIRCLES[number % 4],
        )
        frozen.append(window)
    return frozen


def _in(circles: Sequence[str] | None, windows: list[Window]) -> list[Window]:
    return [window for window in windows if circles is None or window.circle in circles]


@pytest.mark.parametrize("circles", [*SOME, None])
async def test_sessions_of_some_circles_come_newest_first_in_pages(
    registry: Registry, sessions: list[Session], circles: tuple[str, ...] | None
) -> None:
    own = None if circles is None else frozenset(circles)
    for states in (
        None,
        frozenset({SessionState.ACTIVE}),
        frozenset({SessionState.ACTIVE, SessionState.EXPIRED}),
    ):
        expected = [
            each.id
            for each in sessions
            if (own is None or each.circle in own) and (states is None or each.state in states)
        ]
        query, seen = SessionQuery(states, 2, circles=own), list[str]()
        while page := await registry.sessions("acme", query):
            seen += [each.id for each in page]
            query = replace(query, after=SessionMark(page[-1].created_at, page[-1].id))
        assert seen == expected


@pytest.mark.parametrize("circles", [*SOME, None])
async def test_windows_of_some_circles_come_in_order_with_their_total(
    registry: Registry, windows: list[Window], circles: tuple[str, ...] | None
) -> None:
    own = None if circles is None else frozenset(circles)
    keys = {
        WindowSort.NAME: "name",
        WindowSort.CREATED_AT: "created_at",
        WindowSort.TOKEN_COUNT: "token_count",
    }
    for (sort_by, key), descending, tags, search in product(
        keys.items(), (True, False), ((), ("red",)), (None, "w1")
    ):
        expected = sorted(
            (w for w in _in(circles, windows) if set(tags) <= set(w.tags) and (search or "w") in w.name),
            key=lambda window: (getattr(window, key), window.name),
            reverse=descending,
        )
        query = WindowQuery(tags, sort_by=sort_by, descending=descending, search=search, limit=2, circles=own)
        pages = [await registry.windows("acme", replace(query, offset=offset)) for offset in range(0, 14, 2)]
        assert [w.name for page in pages for w in page.windows] == [w.name for w in expected]
        assert {(page.total, page.total_exact) for page in pages} == {(len(expected), True)}
        assert [page.has_more for page in pages] == [len(expected) > end for end in range(2, 16, 2)]
        onward, seen = query, list[str]()
        while windows_of_page := (await registry.windows("acme", onward)).windows:
            seen += [w.name for w in windows_of_page]
            onward = replace(onward, after=onward.mark(windows_of_page[-1]))
        assert seen == [w.name for w in expected]


async def test_an_offset_far_into_windows_of_several_circles_is_refused(
    registry: Registry, windows: list[Window]
) -> None:
    query = WindowQuery(offset=10_001, circles=frozenset({"tenant", "owner:ann"}))
    with pytest.raises(InvalidParameterError, match="next_cursor"):
        await registry.windows("acme", query)
    assert (await registry.windows("acme", replace(query, circles=frozenset({"tenant"})))).total == 3


async def test_a_shared_session_is_listed_in_its_new_circle(
    registry: Registry, sessions: list[Session]
) -> None:
    session = next(each for each in sessions if each.circle == "owner:ann")
    assert await registry.share_session(session, "owner:bob")
    assert await registry.session("acme", session.id) == replace(session, circle="owner:bob")
    listed = await registry.sessions("acme", SessionQuery(circles=frozenset({"owner:bob"})))
    assert session.id in [each.id for each in listed]
    assert not await registry.share_session(replace(session, created_at=LATER), "tenant")
    await registry.remove_session("acme", session.id, LATER)
    assert not await registry.share_session(session, "tenant")


async def test_a_shared_window_is_found_in_its_new_circle_by_everything_that_found_it(
    registry: Registry, windows: list[Window]
) -> None:
    window = next(each for each in windows if each.circle == "owner:bob" and each.tags)
    assert await registry.share_window(window, "tenant", LATER)
    shared = replace(window, circle="tenant", updated_at=LATER)
    for query in (
        WindowQuery(),
        WindowQuery(tags=("red",)),
        WindowQuery(tags=("red",), model="tiny", search=window.name),
    ):
        before, after = [
            await registry.windows("acme", replace(query, circles=frozenset({circle})))
            for circle in ("owner:bob", "tenant")
        ]
        assert shared in after.windows
        assert window.name not in [each.name for each in before.windows]
    assert await registry.share_window(shared, "owner:bob", LATER)
    assert len((await registry.windows("acme", WindowQuery(circles=frozenset({"owner:bob"})))).windows) == 3
    await remove(registry, window.name)
    assert not await registry.share_window(window, "tenant", LATER)
    assert (await registry.windows("acme", WindowQuery(circles=frozenset(CIRCLES)))).total == 11


async def test_what_depends_on_a_window_is_named_to_those_who_see_it_and_counted_for_others(
    registry: Registry,
) -> None:
    window = await freeze(registry, "w1")
    await clone(registry, window, "anns", circle="owner:ann")
    await clone(registry, window, "everybodys")
    thawed = a_session("bobs", thawed_from="w1", state=SessionState.THAWED, circle="owner:bob")
    await registry.add_session(thawed, IDS)
    assert await registry.dependents("acme", "w1") == Dependents(("anns", "everybodys"), ("bobs",))
    own = frozenset({"owner:ann", "tenant"})
    assert await registry.dependents("acme", "w1", own) == Dependents(("anns", "everybodys"), (), 1)
