"""What every registry owes: sessions and their token ids."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta, timezone

import pytest
from sqlalchemy import text

from cwm.adapters.sql.database import Database
from cwm.domain.errors import (
    SessionAlreadyExistsError,
    SessionNotActiveError,
    SessionNotFoundError,
    StorageCorruptionError,
    StorageWriteError,
)
from cwm.domain.prefix import digest
from cwm.domain.session import LIVE, Session, SessionMark, SessionQuery, SessionState
from cwm.domain.turn import Message, TurnParts, TurnQuery, TurnTag
from cwm.ports.registry import Registry
from tests.contracts.nouns import (
    IDS,
    LATER,
    NOW,
    Damage,
    a_session,
    a_turn,
    a_window,
    ask_turn,
    end_turn,
    freeze,
    recorded,
    stored,
)

pytestmark = pytest.mark.slow


async def test_a_session_comes_back_as_it_was_given(registry: Registry) -> None:
    session = a_session(
        state=SessionState.THAWED,
        frozen_at=LATER,
        thawed_from="gone",
        branch_token=70,
        metadata={"template": {"has_system": True}, "é\u0000": [1, None, "\ud800"]},
    )
    await registry.add_session(session, IDS)
    assert await registry.session("acme", "s1") == session
    assert await registry.session_tokens("acme", "s1") == IDS


async def test_a_session_that_was_never_added_is_none(registry: Registry) -> None:
    assert await registry.session("acme", "s1") is None


async def test_the_tokens_of_an_unknown_session_are_refused(registry: Registry) -> None:
    with pytest.raises(SessionNotFoundError):
        await registry.session_tokens("acme", "s1")


async def test_a_new_session_has_no_tokens_yet(registry: Registry) -> None:
    await registry.add_session(a_session(token_count=0), ())
    assert await registry.session_tokens("acme", "s1") == ()


@pytest.mark.parametrize("state", SessionState)
async def test_an_id_is_taken_whatever_became_of_its_session(registry: Registry, state: SessionState) -> None:
    await registry.add_session(a_session(state=state), IDS)
    with pytest.raises(SessionAlreadyExistsError) as refused:
        await registry.add_session(a_session(owner="bob"), ())
    assert refused.value.context == {"session_id": "s1"}
    kept = await registry.session("acme", "s1")
    if state is SessionState.DELETED:
        assert kept is None
        return
    assert kept is not None
    assert (kept.owner, await registry.session_tokens("acme", "s1")) == ("ann", IDS)


async def test_two_tenants_have_the_same_id_each_for_themselves(registry: Registry) -> None:
    await registry.add_session(a_session(tenant="acme"), IDS)
    await registry.add_session(a_session(tenant="bolt", token_count=1), (7,))
    assert await registry.session_tokens("acme", "s1") == IDS
    assert await registry.session_tokens("bolt", "s1") == (7,)


async def test_a_timestamp_of_any_zone_comes_back_as_the_same_instant_in_utc(registry: Registry) -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=-7)))
    await registry.add_session(a_session(created_at=elsewhere), ())
    session = await registry.session("acme", "s1")
    assert session is not None
    assert session.created_at == NOW
    assert session.created_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("state", [SessionState.ACTIVE, SessionState.THAWED])
async def test_a_turn_replaces_the_ids_and_makes_the_session_active(
    registry: Registry, state: SessionState
) -> None:
    await registry.add_session(a_session(state=state, thawed_from="w", metadata={"kept": 1}), IDS)
    longer = (*IDS, 2**32 - 1, 0)
    after = await recorded(registry, "acme", "s1", longer, LATER)
    assert after == a_session(
        state=SessionState.ACTIVE,
        thawed_from="w",
        metadata={"kept": 1},
        token_count=72,
        revision=1,
        updated_at=LATER,
    )
    assert await registry.session("acme", "s1") == after
    assert await registry.session_tokens("acme", "s1") == longer


async def test_a_turn_replaces_the_metadata_that_is_given(registry: Registry) -> None:
    await registry.add_session(a_session(metadata={"old": 1}), IDS)
    after = await recorded(registry, "acme", "s1", IDS, LATER, {"new": 2})
    assert after is not None
    assert after.metadata == {"new": 2}


@pytest.mark.parametrize("state", [SessionState.FROZEN, SessionState.EXPIRED, SessionState.DELETED])
async def test_a_turn_of_a_session_that_is_not_live_changes_nothing(
    registry: Registry, state: SessionState
) -> None:
    before = a_session(state=state)
    await registry.add_session(before, IDS)
    assert await recorded(registry, "acme", "s1", (1, 2), LATER, {"new": 2}) is None
    seen = None if state is SessionState.DELETED else before
    assert await registry.session("acme", "s1") == seen
    assert await registry.session_tokens("acme", "s1") == IDS


async def test_a_turn_that_continues_a_revision_is_recorded_at_that_one_alone(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    first = await recorded(registry, "acme", "s1", (*IDS, 1), LATER, revision=0)
    assert first is not None
    assert first.revision == 1
    assert await recorded(registry, "acme", "s1", (*IDS, 2), LATER, {"new": 2}, revision=0) is None
    assert await registry.session("acme", "s1") == first
    assert await registry.session_tokens("acme", "s1") == (*IDS, 1)


async def test_who_removes_or_freezes_a_session_does_so_to_no_other_one_of_the_same_id(
    registry: Registry,
) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.remove_session("acme", "s1", LATER, created_at=NOW)
    again = a_session(created_at=LATER)
    await registry.add_session(again, IDS)
    with pytest.raises(SessionNotFoundError):
        await registry.remove_session("acme", "s1", LATER, created_at=NOW)
    with pytest.raises(SessionNotActiveError):
        await registry.begin_freeze(a_window(), IDS, again.revision, NOW)
    assert await registry.session("acme", "s1") == again
    await registry.begin_freeze(a_window(), IDS, again.revision, LATER)


async def test_a_turn_of_a_session_is_not_recorded_in_another_one_of_the_same_id(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.remove_session("acme", "s1", LATER)
    again = a_session(created_at=LATER)
    await registry.add_session(again, ())
    for revision in (0, None):
        assert await recorded(registry, "acme", "s1", IDS, LATER, None, revision, NOW) is None
    assert await registry.session("acme", "s1") == again
    assert await registry.session_tokens("acme", "s1") == ()
    turn = await recorded(registry, "acme", "s1", IDS, LATER, None, 0, LATER)
    assert turn is not None
    assert turn.revision == 1


async def test_of_turns_that_continue_a_revision_at_once_one_is_recorded(
    registry: Registry, other_replica: Registry
) -> None:
    await registry.add_session(a_session(), IDS)
    replicas = (registry, other_replica) * 4
    turns = [recorded(r, "acme", "s1", (*IDS, n), LATER, revision=0) for n, r in enumerate(replicas)]
    winners = [n for n, session in enumerate(await asyncio.gather(*turns)) if session]
    assert len(winners) == 1
    assert await registry.session_tokens("acme", "s1") == (*IDS, *winners)


async def test_a_turn_whose_messages_cannot_be_stored_changes_nothing(
    registry: Registry, database: Database
) -> None:
    await registry.add_session(a_session(), IDS)
    turn = await registry.begin_turn(a_turn(main=True, ended_at=LATER), NOW)
    assert turn is not None
    await _rename(database, "turn_contents", "elsewhere")
    with pytest.raises(StorageWriteError):
        await registry.end_turn(turn, TurnParts((*IDS, 1), (Message("m", {}),)))
    await _rename(database, "elsewhere", "turn_contents")
    assert await registry.session("acme", "s1") == a_session()
    assert await registry.turn("acme", turn.id) == replace(turn, main=True, ended_at=LATER)
    assert await registry.session_tokens("acme", "s1") == IDS


async def test_a_turn_of_an_unknown_session_is_none(registry: Registry) -> None:
    assert await recorded(registry, "acme", "s1", IDS, LATER) is None


async def test_a_session_is_seen_as_the_last_replica_left_it(
    registry: Registry, other_replica: Registry
) -> None:
    await registry.add_session(a_session(), IDS)
    for revision in (1, 2):
        after = await recorded(other_replica, "acme", "s1", IDS, LATER)
        assert after is not None
        assert after.revision == revision
        assert await registry.session("acme", "s1") == after


async def test_of_turns_that_end_at_once_the_one_asked_last_is_current(
    registry: Registry, other_replica: Registry
) -> None:
    await registry.add_session(a_session(), ())
    replicas = (registry, other_replica) * 4
    await asyncio.gather(*(recorded(r, "acme", "s1", (*IDS, n), LATER) for n, r in enumerate(replicas)))
    last = (await registry.turns("acme", "s1", TurnQuery(1)))[0]
    assert last.number == 8
    assert await registry.current_turn("acme", "s1") == last
    assert await registry.session_tokens("acme", "s1") == await registry.turn_tokens(last)
    session = await registry.session("acme", "s1")
    main = [turn for turn in await registry.turns("acme", "s1", TurnQuery()) if turn.main]
    assert session is not None
    assert session.revision == len(main)


async def test_sessions_are_listed_newest_first_up_to_the_limit(registry: Registry) -> None:
    for minute in (2, 0, 3, 1):
        await registry.add_session(a_session(f"s{minute}", created_at=NOW + timedelta(minutes=minute)), ())
    assert _ids(await registry.sessions("acme", SessionQuery(limit=3))) == ["s3", "s2", "s1"]


async def test_a_list_of_sessions_leaves_their_metadata_where_it_is(registry: Registry) -> None:
    session = a_session(metadata={"note": "kept"})
    await registry.add_session(session, ())
    bare = replace(session, metadata={})
    assert await registry.sessions("acme", SessionQuery(limit=1)) == [bare]
    assert await registry.sessions("acme", SessionQuery(frozenset({session.state}), 1)) == [bare]
    assert await registry.session("acme", "s1") == session


async def test_pages_of_sessions_show_each_once_also_those_of_the_same_moment(registry: Registry) -> None:
    for name in ("s1", "s2", "s3", "s4"):
        await registry.add_session(a_session(name), ())
    await registry.add_session(a_session("older", created_at=NOW - timedelta(minutes=1)), ())
    seen, after = list[str](), None
    while page := await registry.sessions("acme", SessionQuery(LIVE, 2, after)):
        seen += [session.id for session in page]
        after = SessionMark(page[-1].created_at, page[-1].id)
    assert seen == ["s4", "s3", "s2", "s1", "older"]


async def test_sessions_are_listed_by_state(registry: Registry) -> None:
    for state in SessionState:
        await registry.add_session(a_session(f"s-{state.value}", state=state), ())
    assert _ids(await registry.sessions("acme", SessionQuery(frozenset({SessionState.EXPIRED}), 10))) == [
        "s-expired"
    ]
    listed = {session.state for session in await registry.sessions("acme", SessionQuery(limit=10))}
    assert listed == set(SessionState) - {SessionState.DELETED}


async def test_the_sessions_of_one_owner_are_listed(registry: Registry) -> None:
    for session_id, owner in (("s1", "ann"), ("s2", "bob"), ("s3", "ann")):
        await registry.add_session(a_session(session_id, owner=owner), ())
    assert _ids(await registry.sessions("acme", SessionQuery(owner="ann"))) == ["s3", "s1"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Login", ["fix-login"]),
        ("opencode", ["s2"]),
        ("RELEASE", ["s3"]),
        ("i", ["s3", "fix-login"]),
        ("%", []),
        ("_", []),
        ("x_login", []),
    ],
)
async def test_sessions_are_found_by_a_part_of_their_id_their_client_or_a_tag(
    registry: Registry, text: str, found: list[str]
) -> None:
    for minute, (name, client) in enumerate((("fix-login", "codex"), ("s2", "OpenCode/1.18"), ("s3", "pi"))):
        session = a_session(name, created_at=NOW + timedelta(minutes=minute))
        await registry.add_session(session, ())
        turn = await registry.begin_turn(a_turn(f"{name}-1", name, client=client), session.created_at)
        assert turn is not None
        count, whole = len(IDS), digest(IDS)
        ended = replace(
            turn,
            prompt_tokens=count,
            total_tokens=count,
            prompt_digest=whole,
            digest=whole,
            ended_at=LATER,
            main=True,
        )
        assert await registry.end_turn(ended, TurnParts(IDS)) is not None
    await registry.tag(TurnTag("acme", "the-Release", "s3", "s3-1", "ann", NOW))
    assert _ids(await registry.sessions("acme", SessionQuery(called=text))) == found


async def _shown(registry: Registry) -> tuple[list[str], int, int, int]:
    """Who sees a session: lists, the tenant's totals, those of all tenants, and the counts of engines."""
    totals, stock = await registry.totals("acme"), await registry.stock_of_every_tenant()
    counts = await registry.session_counts_of_every_tenant()
    listed = await registry.sessions("acme", SessionQuery())
    return _ids(listed), totals.sessions["active"], stock.sessions["active"], counts.get("one", 0)


@pytest.mark.parametrize("main", [True, False])
async def test_a_session_that_a_request_opened_is_shown_once_a_turn_has_ended_in_it(
    registry: Registry, *, main: bool
) -> None:
    session = await registry.add_session(a_session(engine="one"), (), listed=False)
    assert await registry.session("acme", "s1") == session
    assert _ids(await registry.sessions("acme", SessionQuery(unlisted=True))) == ["s1"]
    turn = await ask_turn(registry)
    assert await _shown(registry) == ([], 0, 0, 0)
    await end_turn(registry, turn, IDS, main=main)
    assert await _shown(registry) == (["s1"], 1, 1, 1)
    assert await registry.unanswered_sessions_of_every_tenant(LATER + timedelta(days=1), 10) == []


async def test_a_session_without_an_answer_is_forgotten_unless_somebody_uses_it(
    registry: Registry,
) -> None:
    since = LATER + timedelta(hours=1)
    await registry.add_session(a_session("made"), ())
    session = await registry.add_session(a_session("s1"), (), listed=False)
    assert await registry.unanswered_sessions_of_every_tenant(NOW, 10) == []
    turn = await ask_turn(registry, asked_at=LATER)
    assert await registry.unanswered_sessions_of_every_tenant(since, 10) == []
    assert not await registry.forget_unanswered(session)
    await registry.drop_turn(turn)
    assert not await registry.forget_unanswered(session), "it was used since"
    (left,) = await registry.unanswered_sessions_of_every_tenant(since, 10)
    assert left == replace(session, updated_at=LATER)
    assert await registry.forget_unanswered(left)
    assert await registry.session("acme", "s1", any_state=True) is None
    assert _ids(await registry.sessions("acme", SessionQuery())) == ["made"]


async def test_live_sessions_are_found_by_their_first_sixteen_ids(registry: Registry) -> None:
    other = (*IDS[:15], 1, *IDS[16:])
    for session_id, ids, state in (
        ("active", IDS, SessionState.ACTIVE),
        ("thawed", IDS[:16], SessionState.THAWED),
        ("frozen", IDS, SessionState.FROZEN),
        ("expired", IDS, SessionState.EXPIRED),
        ("other", other, SessionState.ACTIVE),
        ("short", IDS[:15], SessionState.ACTIVE),
    ):
        await registry.add_session(a_session(session_id, state=state), ids)
    await registry.add_session(a_session("elsewhere", salt_scope="lineage"), IDS)
    assert await registry.live_sessions_with_head("acme", "acme", IDS) == ["active", "thawed"]
    assert await registry.live_sessions_with_head("acme", "lineage", IDS[:16]) == ["elsewhere"]
    assert await registry.live_sessions_with_head("acme", "acme", IDS[:15]) == []


async def test_a_turn_changes_the_head_a_session_is_found_by(registry: Registry) -> None:
    await registry.add_session(a_session(), ())
    await recorded(registry, "acme", "s1", IDS, LATER)
    assert await registry.live_sessions_with_head("acme", "acme", IDS) == ["s1"]
    await recorded(registry, "acme", "s1", IDS[1:], LATER)
    assert await registry.live_sessions_with_head("acme", "acme", IDS) == []


async def test_a_frozen_session_counts_as_live_until_its_chunks_are_on_record(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    assert await registry.live_sessions_with_head("acme", "acme", IDS) == ["s1"]
    await registry.finish_freeze(a_window(), stored("aa"), LATER)
    assert await registry.live_sessions_with_head("acme", "acme", IDS) == []


async def test_a_damaged_byte_in_the_ids_of_a_session_is_noticed(registry: Registry, damage: Damage) -> None:
    await registry.add_session(a_session(), IDS)
    await damage("turns")
    with pytest.raises(StorageCorruptionError) as noticed:
        await registry.session_tokens("acme", "s1")
    assert noticed.value.code == "CWM-4004"


async def test_a_turn_without_a_parent_needs_nothing_of_damaged_ones(
    registry: Registry, damage: Damage
) -> None:
    await registry.add_session(a_session(), IDS)
    await damage("turns")
    await recorded(registry, "acme", "s1", IDS, LATER)
    assert await registry.session_tokens("acme", "s1") == IDS


async def test_totals_count_each_state_and_each_chunk_once(registry: Registry) -> None:
    await registry.add_session(a_session("idle"), ())
    await freeze(registry, "w1", "aa", "bb")
    await freeze(registry, "w2", "aa", "cc")
    await freeze(registry, "w3", "aa", cache_salt="another")
    await freeze(registry, "theirs", "dd", tenant="bolt")
    totals = await registry.totals("acme")
    assert (totals.windows, totals.chunks, totals.chunk_bytes) == (3, 4, 400)
    assert totals.sessions == {"active": 1, "frozen": 3, "thawed": 0, "expired": 0, "deleted": 0}


async def test_totals_of_a_tenant_without_anything_are_zero(registry: Registry) -> None:
    totals = await registry.totals("nobody")
    assert (totals.windows, totals.chunks, totals.chunk_bytes) == (0, 0, 0)
    assert set(totals.sessions.values()) == {0}


def _ids(sessions: list[Session]) -> list[str]:
    return [session.id for session in sessions]


async def _rename(database: Database, table: str, name: str) -> None:
    await database.write(lambda connection: connection.execute(text(f"ALTER TABLE {table} RENAME TO {name}")))
