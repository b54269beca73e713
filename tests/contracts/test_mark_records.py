"""What every record of marks owes: it sees the changes of a tenant, and of no other."""

from __future__ import annotations

from datetime import timedelta

from cwm.domain.marks import Touch, WindowMark
from cwm.domain.session import SessionState
from cwm.ports.marks import MarkRecords
from cwm.ports.registry import Registry
from tests.contracts.nouns import IDS, LATER, NOW, a_session, a_window, freeze, recorded, stored

SINCE = LATER - timedelta(seconds=10)


async def test_sessions_that_were_touched_of_late_are_told_with_their_circles(
    registry: Registry, mark_records: MarkRecords
) -> None:
    for session_id in ("s1", "s2"):
        await registry.add_session(a_session(session_id, circle=f"owner:{session_id}"), IDS)
    await registry.add_session(a_session("s1", "bolt"), IDS)
    assert await mark_records.touched_of_every_tenant(SINCE) == {}
    assert await recorded(registry, "acme", "s2", IDS, LATER) is not None
    assert await mark_records.touched_of_every_tenant(SINCE) == {"acme": {"s2": Touch(LATER, "owner:s2")}}


async def test_a_session_that_expires_is_touched(registry: Registry, mark_records: MarkRecords) -> None:
    await registry.add_session(a_session("s1", state=SessionState.EXPIRED, updated_at=LATER), IDS)
    assert [*(await mark_records.touched_of_every_tenant(SINCE))["acme"]] == ["s1"]


async def test_a_freeze_changes_the_mark_when_it_begins_and_when_it_is_proven(
    registry: Registry, mark_records: MarkRecords
) -> None:
    await freeze(registry, "earlier", "aa")
    await freeze(registry, "theirs", "aa", tenant="bolt")
    await registry.add_session(a_session("s1"), IDS)
    seen = [await mark_records.window_mark("acme")]
    window = a_window("w1", created_at=LATER)
    await registry.begin_freeze(window, IDS, None)
    seen.append(await mark_records.window_mark("acme"))
    await registry.finish_freeze(window, stored("bb"), LATER)
    seen.append(await mark_records.window_mark("acme"))
    assert seen == [WindowMark(1, 0, NOW), WindowMark(2, 1, LATER), WindowMark(2, 0, LATER)]
