"""What every registry owes: sessions whose current turn nobody froze, and the windows that were made of them before."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from cwm.domain.autosave import UnsavedQuery
from cwm.domain.prefix import digest
from cwm.domain.session import SessionState
from cwm.domain.window import Window
from cwm.ports.registry import Registry
from tests.contracts.nouns import IDS, LATER, NOW, a_session, a_window, recorded, stored

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)
ANY = UnsavedQuery(limit=10, tokens=0)


async def _talked(
    registry: Registry, session_id: str = "s1", tokens: int = 40, tenant: str = "acme", **fields: Any
) -> None:
    """A session with one turn, asked at ``LATER``."""
    await registry.add_session(a_session(session_id, tenant, token_count=0, **fields), ())
    assert await recorded(registry, tenant, session_id, IDS[:tokens], LATER) is not None


async def _saved(registry: Registry, name: str, session_id: str = "s1", **fields: Any) -> Window:
    """A window of the session's current turn."""
    turn = await registry.current_turn("acme", session_id)
    assert turn is not None
    ids = await registry.turn_tokens(turn)
    window = a_window(
        name,
        session_id=session_id,
        snapshot_id=digest(ids),
        token_count=len(ids),
        turn_id=turn.id,
        **{"automatic": True, "created_at": LATER, **fields},
    )
    await registry.begin_freeze(window, ids, None)
    return window


async def _due(registry: Registry, query: UnsavedQuery = ANY) -> list[str]:
    return [session.id for session in await registry.unsaved_sessions_of_every_tenant(query)]


async def test_a_session_is_due_until_there_is_a_window_of_its_current_turn(registry: Registry) -> None:
    await _talked(registry)
    (session,) = await registry.unsaved_sessions_of_every_tenant(ANY)
    assert session == await registry.session("acme", "s1")
    await _saved(registry, "w1")
    assert await _due(registry) == []
    await recorded(registry, "acme", "s1", IDS[:41], LATER)
    assert await _due(registry) == ["s1"]


async def test_a_window_that_somebody_else_made_of_the_current_turn_counts(registry: Registry) -> None:
    await _talked(registry)
    await _saved(registry, "w1", automatic=False)
    assert await _due(registry) == []


@pytest.mark.parametrize(
    ("tokens", "is_due"), [(40, False), (49, False), (50, True), (70, True), (31, False), (30, True)]
)
async def test_a_session_is_due_once_its_context_is_so_much_longer_or_shorter(
    registry: Registry, tokens: int, *, is_due: bool
) -> None:
    await _talked(registry, tokens=20)
    await _saved(registry, "older", created_at=LATER - SECOND)
    await recorded(registry, "acme", "s1", IDS[:40], LATER)
    await _saved(registry, "newer")
    await _saved(registry, "asked_for", automatic=False, created_at=LATER + SECOND)
    await recorded(registry, "acme", "s1", IDS[:tokens], LATER)
    assert await _due(registry, replace(ANY, tokens=10)) == ["s1"] * is_due


async def test_without_a_window_a_context_counts_from_its_branch_on(registry: Registry) -> None:
    await _talked(registry, "new", 40)
    await _talked(registry, "thawed", 40, branch_token=35)
    assert await _due(registry, replace(ANY, tokens=40)) == ["new"]
    assert set(await _due(registry, replace(ANY, tokens=5))) == {"new", "thawed"}


async def test_a_session_is_due_once_its_last_automatic_window_is_old(registry: Registry) -> None:
    await _talked(registry)
    await _saved(registry, "w1")
    await recorded(registry, "acme", "s1", IDS[:41], LATER)
    assert await _due(registry, replace(ANY, tokens=None, saved_before=LATER)) == []
    assert await _due(registry, replace(ANY, tokens=None, saved_before=LATER + SECOND)) == ["s1"]


async def test_without_a_window_the_time_counts_from_the_sessions_beginning(registry: Registry) -> None:
    await _talked(registry)
    assert await _due(registry, replace(ANY, tokens=None, saved_before=NOW)) == []
    assert await _due(registry, replace(ANY, tokens=None, saved_before=NOW + SECOND)) == ["s1"]


async def test_one_reason_is_enough(registry: Registry) -> None:
    await _talked(registry)
    assert await _due(registry, replace(ANY, tokens=1_000, saved_before=NOW + SECOND)) == ["s1"]
    assert await _due(registry, replace(ANY, tokens=40, saved_before=NOW)) == ["s1"]
    assert await _due(registry, replace(ANY, tokens=1_000, saved_before=NOW)) == []


async def test_sessions_are_due_by_their_last_use_the_longest_ago_first(registry: Registry) -> None:
    for seconds, name in enumerate(("s0", "s1", "s2")):
        await registry.add_session(a_session(name, token_count=0), ())
        await recorded(registry, "acme", name, IDS, LATER + seconds * SECOND)
    assert await _due(registry) == ["s0", "s1", "s2"]
    assert await _due(registry, replace(ANY, limit=2)) == ["s0", "s1"]
    assert await _due(registry, replace(ANY, used_since=LATER + SECOND)) == ["s1", "s2"]
    assert await _due(registry, replace(ANY, used_before=LATER + SECOND)) == ["s0"]


async def test_one_tenant_or_all_but_some_are_asked_about(registry: Registry) -> None:
    for tenant in ("acme", "bolt", "core"):
        await _talked(registry, f"of-{tenant}", tenant=tenant)
    assert await _due(registry, replace(ANY, tenant="bolt")) == ["of-bolt"]
    assert await _due(registry, replace(ANY, but=frozenset({"acme", "core"}))) == ["of-bolt"]


@pytest.mark.parametrize("state", [state for state in SessionState if state is not SessionState.ACTIVE])
async def test_only_an_active_session_with_a_turn_is_due(registry: Registry, state: SessionState) -> None:
    """The context of a thawed one that nobody went on with is that of its window."""
    await registry.add_session(a_session("begun", token_count=0), ())
    await registry.add_session(a_session(state=state), IDS)
    assert await _due(registry) == []


async def test_automatic_windows_of_a_session_are_listed_the_newest_first(registry: Registry) -> None:
    await _talked(registry)
    await _talked(registry, "s2")
    older = await _saved(registry, "older")
    newer = await _saved(registry, "newer", created_at=LATER + SECOND)
    await _saved(registry, "asked_for", automatic=False)
    await _saved(registry, "of-s2", "s2")
    assert await registry.automatic_windows("acme", "s1") == [newer, older]
    assert await registry.automatic_windows("bolt", "s1") == []
    every = await registry.windows_of_session("acme", "s1")
    assert [window.name for window in every] == ["newer", "asked_for", "older"]
    assert await registry.windows_of_session("bolt", "s1") == []


@pytest.mark.parametrize("automatic", [False, True])
async def test_an_automatic_window_is_durable_without_a_proof(registry: Registry, *, automatic: bool) -> None:
    await _talked(registry)
    window = await _saved(registry, "w1", automatic=automatic)
    finished = await registry.finish_freeze(window, stored("a"), LATER)
    assert finished.proven_at == (None if automatic else LATER)
    assert await registry.window("acme", "w1") == finished


async def test_sessions_that_were_found_by_what_was_said_are_asked_for_alone(registry: Registry) -> None:
    await _talked(registry, "found", metadata={"found_by": "content"})
    await _talked(registry, "named", metadata={"found_by": "client"})
    await _talked(registry, "opened")
    assert await _due(registry, replace(ANY, by_content=True)) == ["found"]
    assert sorted(await _due(registry, replace(ANY, by_content=False))) == ["named", "opened"]
