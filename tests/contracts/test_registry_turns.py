"""What every registry owes: turns, which make a session a tree and are never overwritten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any, Final, TypeAlias

import pytest
from sqlalchemy import delete, func, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.adapters.sql.vault import Vault
from cwm.domain.answers import KeyKind
from cwm.domain.errors import StorageCorruptionError, TurnInFlightError
from cwm.domain.keep import TreeLimit, TreeSize
from cwm.domain.messages import in_brief
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.session import SessionState
from cwm.domain.turn import Message, Profile, Turn, TurnParts, TurnQuery, TurnState, TurnTag
from cwm.domain.word_search import Words
from cwm.ports.registry import Registry
from tests.contracts.nouns import IDS, LATER, NOW, Damage, a_session, a_turn, a_window, ask_turn, end_turn

pytestmark = pytest.mark.slow

KEY: Final = "a key of a test, thirty-two characters"
SOON: Final = NOW + timedelta(minutes=1)
OTHER_IDS: Final = tuple(range(5000, 5040))
HELLO: Final = Message("hello", {"role": "user", "content": "Hello \ud800 é\u0000"})
REPLY: Final = Message("reply", {"role": "assistant", "content": None, "tool_calls": [{"z": 1, "a": 2.0}]})

Change: TypeAlias = Callable[[Registry], Awaitable[Any]]


@pytest.fixture(params=[(), pytest.param((KEY,), marks=pytest.mark.slow)], ids=["clear", "sealed"])
def registry(database: Database, request: pytest.FixtureRequest) -> SqlRegistry:
    return SqlRegistry(database, vault=Vault(request.param))


async def test_a_turn_is_numbered_when_it_is_asked_and_marks_its_session_as_used(database: Database) -> None:
    registry = SqlRegistry(database, "gateway-1")
    await registry.add_session(a_session(), ())
    turn = a_turn(asked_at=SOON, client="agent/1.0", profile=Profile("s", "t"), trace_id="0a" * 16)
    asked = await registry.begin_turn(turn, NOW)
    assert asked == replace(turn, number=1, holder="gateway-1")
    assert await registry.turn("acme", "t1") == asked
    assert await registry.session("acme", "s1") == a_session(updated_at=SOON)
    assert await registry.current_turn("acme", "s1") is None


async def test_an_ended_turn_comes_back_as_it_was_given(registry: Registry) -> None:
    await registry.add_session(a_session(), ())
    asked = await ask_turn(registry, asked_at=SOON, trace_id="0a" * 16)
    turn = replace(
        asked,
        client="agent/1.0",
        profile=Profile("s", "t"),
        prompt_tokens=60,
        total_tokens=70,
        prompt_digest=digest(IDS[:60]),
        digest=digest(IDS),
        main=True,
        cached_tokens=0,
        ended_at=LATER,
    )
    session = await registry.end_turn(turn, TurnParts(IDS, (HELLO, REPLY)), {"new": 2})
    assert session == a_session(revision=1, updated_at=LATER, metadata={"new": 2})
    assert await registry.session("acme", "s1") == session
    ended = replace(turn, state=TurnState.ENDED)
    assert await registry.turn("acme", "t1") == ended
    assert await registry.current_turn("acme", "s1") == ended
    assert await registry.turn_tokens(ended) == await registry.session_tokens("acme", "s1") == IDS
    messages = await registry.turn_messages(ended)
    assert messages == [HELLO, REPLY]
    assert list(messages[1].content["tool_calls"][0]) == ["z", "a"]


async def test_tokens_of_a_new_session_are_its_first_turn(registry: Registry) -> None:
    await registry.add_session(a_session(updated_at=SOON), IDS)
    first = await registry.current_turn("acme", "s1")
    assert first is not None
    assert first == Turn(
        tenant="acme",
        session_id="s1",
        id=first.id,
        author="ann",
        asked_at=SOON,
        number=1,
        state=TurnState.ENDED,
        prompt_tokens=len(IDS),
        total_tokens=len(IDS),
        prompt_digest=digest(IDS),
        digest=digest(IDS),
        main=True,
        ended_at=SOON,
    )
    assert await registry.turn_messages(first) == []
    assert (await ask_turn(registry)).number == 2


async def test_an_unknown_turn_is_none(registry: Registry) -> None:
    assert await registry.turn("acme", "t1") is None
    assert await registry.current_turn("acme", "s1") is None
    assert await registry.turns("acme", "s1", TurnQuery()) == []


@pytest.mark.parametrize("state", [SessionState.FROZEN, SessionState.EXPIRED, SessionState.DELETED])
async def test_a_session_that_is_not_live_takes_no_turn(registry: Registry, state: SessionState) -> None:
    await registry.add_session(a_session(state=state), ())
    assert await registry.begin_turn(a_turn(asked_at=LATER), NOW) is None
    assert await registry.session("acme", "s1", any_state=True) == a_session(state=state)
    assert await registry.turn("acme", "t1") is None


async def test_a_turn_is_asked_in_the_session_that_was_meant_alone(registry: Registry) -> None:
    assert await registry.begin_turn(a_turn(), NOW) is None
    await registry.add_session(a_session(), ())
    assert await registry.begin_turn(a_turn(asked_at=LATER), LATER) is None
    assert await registry.session("acme", "s1") == a_session()
    assert await registry.turns("acme", "s1", TurnQuery()) == []


async def test_turns_that_two_replicas_ask_at_once_have_different_numbers(
    registry: Registry, other_replica: Registry
) -> None:
    await registry.add_session(a_session(), ())
    replicas = (registry, other_replica) * 8
    asked = await asyncio.gather(*(ask_turn(r, f"t{n}") for n, r in enumerate(replicas)))
    assert sorted(turn.number for turn in asked) == list(range(1, 17))


async def test_a_turn_that_ends_after_one_asked_later_is_kept_and_not_current(registry: Registry) -> None:
    await registry.add_session(a_session(), ())
    early, late = await ask_turn(registry, "early"), await ask_turn(registry, "late")
    session = await end_turn(registry, late, IDS)
    assert session is not None
    assert await end_turn(registry, early, OTHER_IDS, ended_at=LATER + timedelta(minutes=1)) == session
    assert await registry.session("acme", "s1") == session
    assert await registry.session_tokens("acme", "s1") == IDS
    kept = await registry.turn("acme", "early")
    assert kept is not None
    assert (kept.state, kept.main) == (TurnState.ENDED, False)
    assert await registry.turn_tokens(kept) == OTHER_IDS


async def test_a_turn_that_begins_the_line_late_leaves_it_to_no_other(registry: Registry) -> None:
    await registry.add_session(a_session(), ())
    early, late = await ask_turn(registry, "early"), await ask_turn(registry, "late")
    await end_turn(registry, late, OTHER_IDS)
    line = replace(early, main=True, total_tokens=len(IDS), digest=digest(IDS), ended_at=LATER)
    assert await registry.end_turn(line, TurnParts(IDS), begins_line=True) is not None
    assert await registry.session_tokens("acme", "s1") == IDS
    assert [turn.main for turn in await registry.turns("acme", "s1", TurnQuery())] == [False, True]


async def test_a_side_turn_is_never_current(registry: Registry) -> None:
    await registry.add_session(a_session(state=SessionState.THAWED), IDS)
    main = await registry.current_turn("acme", "s1")
    side = await ask_turn(registry, asked_at=SOON)
    session = await end_turn(registry, side, OTHER_IDS, main=False)
    assert session == a_session(state=SessionState.THAWED, updated_at=LATER)
    assert await registry.session("acme", "s1") == session
    assert await registry.current_turn("acme", "s1") == main
    kept = await registry.turn("acme", side.id)
    assert kept is not None
    assert (kept.main, await registry.turn_tokens(kept)) == (False, OTHER_IDS)


async def test_deltas_join_exactly_wherever_a_turn_leaves_its_parent(registry: Registry) -> None:
    """In the middle of the parent's answer, in its prompt, and before the parent left its own parent."""
    await registry.add_session(a_session(), ())
    chance = Random(7)
    contexts: dict[str, tuple[Turn, TokenIds, list[Message]]] = {}
    for number in range(40):
        turn = await ask_turn(registry, f"t{number}")
        parent, ids, messages = chance.choice([(None, (), []), *contexts.values()])
        at, parent_messages = chance.randint(0, len(ids)), chance.randint(0, len(messages))
        added = tuple(chance.randrange(2**32) for _ in range(chance.randint(1, 30)))
        new = [Message(f"m{number}-{n}", {"n": [number, n]}) for n in range(chance.randint(0, 3))]
        context, thread = ids[:at] + added, messages[:parent_messages] + new
        await end_turn(registry, turn, context, parent, at, messages=new, parent_messages=parent_messages)
        contexts[turn.id] = (turn, context, thread)
        assert await registry.session_tokens("acme", "s1") == context
        first = IDS if len(context) < 16 else context
        assert await registry.live_sessions_with_head("acme", "acme", first) == ["s1"][: len(context) // 16]
    for turn, context, thread in contexts.values():
        assert await registry.turn_tokens(turn) == context
        assert await registry.turn_messages(turn) == thread


async def test_damage_in_a_parent_is_noticed_in_its_children(registry: Registry, damage: Damage) -> None:
    await registry.add_session(a_session(), IDS)
    parent = await registry.current_turn("acme", "s1")
    await damage("turns")
    await end_turn(registry, await ask_turn(registry), (*IDS, 1), parent, len(IDS))
    child = await registry.turn("acme", "t1")
    assert child is not None
    for reading in (registry.turn_tokens(child), registry.session_tokens("acme", "s1")):
        with pytest.raises(StorageCorruptionError) as noticed:
            await reading
        assert noticed.value.code == "CWM-4004"


async def test_a_parent_that_is_gone_is_noticed(registry: Registry, database: Database) -> None:
    await registry.add_session(a_session(), ())
    parent = await ask_turn(registry, "parent")
    await end_turn(registry, parent, IDS, messages=[HELLO])
    child = await ask_turn(registry, "child")
    await end_turn(registry, child, (*IDS, 1), parent, len(IDS), messages=[REPLY], parent_messages=1)
    gone = delete(turns).where(turns.c.id == "parent")
    await database.write(lambda connection: connection.execute(gone))
    for reading in (registry.turn_tokens(child), registry.turn_messages(child)):
        with pytest.raises(StorageCorruptionError):
            await reading


async def test_an_asked_turn_has_no_context_yet(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    turn = await ask_turn(registry)
    for reading in (registry.turn_tokens(turn), registry.turn_messages(turn)):
        with pytest.raises(StorageCorruptionError):
            await reading


async def test_a_message_is_stored_once_in_a_session(registry: Registry, database: Database) -> None:
    for session_id in ("s1", "s2"):
        await registry.add_session(a_session(session_id), ())
        for number in range(2):
            turn = await ask_turn(registry, f"{session_id}-{number}", session_id=session_id)
            await end_turn(registry, turn, IDS, messages=[HELLO, HELLO, REPLY])
            assert await registry.turn_messages(turn) == [HELLO, HELLO, REPLY]
    assert await _count(database, turn_contents) == 4


async def test_words_are_found_in_the_turns_that_brought_them(registry: Registry) -> None:
    await registry.add_session(a_session(), ())
    parent = await ask_turn(registry, "parent")
    await end_turn(registry, parent, IDS, messages=[HELLO, REPLY])
    child = await ask_turn(registry, "child")
    again = Message("again", {"role": "user", "content": "hello again"})
    await end_turn(registry, child, (*IDS, 1), parent, len(IDS), messages=[HELLO, again], parent_messages=1)
    words = Words.parse("HELLO")
    found, count = await registry.findings("acme", "s1", words)
    assert [(each.turn_id, each.number, each.index, each.role) for each in found] == [
        ("child", 2, 1, "user"),
        ("child", 2, 0, "user"),
        ("parent", 1, 0, "user"),
    ]
    assert (found[0].excerpt, found[0].asked_at, count) == ("hello again", NOW, 3)
    assert await registry.findings("acme", "s1", words, "parent") == (found[2:], 2)
    assert await registry.findings("acme", "s2", words) == ([], 0)


async def test_a_message_that_is_not_kept_leaves_its_digest(registry: Registry, database: Database) -> None:
    await registry.add_session(a_session(), ())
    unkept = Message(HELLO.digest)
    turn = await ask_turn(registry)
    await end_turn(registry, turn, IDS, messages=[unkept, REPLY])
    assert await registry.turn_messages(turn) == [unkept, REPLY]
    assert await registry.message_digests(turn) == (HELLO.digest, REPLY.digest)
    stored = await database.read(lambda connection: connection.execute(select(turn_contents.c.packed)).all())
    assert b"" in [row.packed for row in stored]


@pytest.fixture
async def grove(registry: Registry) -> dict[str, Turn]:
    """A line of two turns, the later one current, and three side branches of the first: two turns, one, and a window's."""
    await registry.add_session(a_session(), ())
    turns_by_id: dict[str, Turn] = {}
    contexts: dict[str, TokenIds] = {}
    for turn_id, parent, added in (
        ("first", None, 10),
        ("title", "first", 5),
        ("retry", "first", 4),
        ("frozen", "first", 3),
        ("second", "first", 10),
        ("title again", "title", 5),
    ):
        above = turns_by_id.get(parent or "")
        at = 0 if above is None else above.total_tokens
        turn = await ask_turn(registry, turn_id)
        context = contexts[turn_id] = (*contexts.get(parent or "", ()), *range(100 * turn.number)[-added:])
        main = turn_id in {"first", "second"}
        await end_turn(registry, turn, context, above, at, main=main)
        ended = await registry.turn("acme", turn_id)
        assert ended is not None
        turns_by_id[turn_id] = ended
    window = a_window(turn_id="frozen")
    await registry.begin_freeze(window, IDS, None)
    return turns_by_id


@pytest.mark.parametrize(
    ("limit", "removed", "left"),
    [
        (TreeLimit(turns=7), TreeSize(0, 0), 6),
        (TreeLimit(turns=6), TreeSize(1, 4), 5),
        (TreeLimit(tokens=30), TreeSize(3, 14), 3),
        (TreeLimit(turns=1), TreeSize(3, 14), 3),
    ],
)
async def test_room_is_made_of_the_side_branches_whose_last_turn_is_oldest(
    registry: Registry, grove: dict[str, Turn], limit: TreeLimit, removed: TreeSize, left: int
) -> None:
    assert await registry.tree_size("acme", "s1") == TreeSize(6, 37)
    assert await registry.make_room(a_session(), limit) == removed
    size = await registry.tree_size("acme", "s1")
    assert size == TreeSize(left, 37 - removed.tokens)
    for turn_id in ("first", "second", "frozen"):
        assert await registry.turn("acme", turn_id) == grove[turn_id]


@pytest.mark.usefixtures("grove")
async def test_no_room_is_made_beside_a_turn_in_flight(registry: Registry) -> None:
    await ask_turn(registry, "in flight")
    with pytest.raises(TurnInFlightError):
        await registry.make_room(a_session(), TreeLimit(turns=1))
    assert (await registry.tree_size("acme", "s1")).turns == 7


@pytest.mark.parametrize("change", ["damaged", "gone"])
async def test_a_message_that_cannot_be_read_is_noticed(
    registry: Registry, database: Database, damage: Damage, change: str
) -> None:
    await registry.add_session(a_session(), ())
    turn = await ask_turn(registry)
    await end_turn(registry, turn, IDS, messages=[HELLO])
    if change == "damaged":
        await damage("turn_contents", 20)
    else:
        await database.write(lambda connection: connection.execute(delete(turn_contents)))
    with pytest.raises(StorageCorruptionError) as noticed:
        await registry.turn_messages(turn)
    assert noticed.value.code == "CWM-4004"
    assert (await registry.findings("acme", "s1", Words.parse("hello")))[0] == []


async def _replace(registry: Registry) -> None:
    await registry.remove_session("acme", "s1", LATER)
    await registry.add_session(a_session(created_at=LATER), ())


_CHANGES: Final[dict[str, Change]] = {
    "frozen": lambda r: r.begin_freeze(a_window(), IDS, 0),
    "expired": lambda r: r.expire_session(a_session(updated_at=SOON), LATER),
    "removed": lambda r: r.remove_session("acme", "s1", LATER),
    "replaced": _replace,
}


@pytest.mark.parametrize("main", [True, False])
@pytest.mark.parametrize("change", _CHANGES)
async def test_a_turn_whose_session_is_no_longer_live_is_forgotten(
    registry: Registry, change: str, main: bool
) -> None:
    await registry.add_session(a_session(), ())
    turn = await ask_turn(registry, asked_at=SOON)
    await _CHANGES[change](registry)
    session = await registry.session("acme", "s1")
    assert await end_turn(registry, turn, IDS, main=main) is None
    assert await registry.turn("acme", "t1") is None
    assert await registry.session("acme", "s1") == session
    assert await registry.current_turn("acme", "s1") is None


@pytest.mark.parametrize("main", [True, False])
async def test_a_turn_whose_session_has_left_its_revision_is_forgotten(
    registry: Registry, main: bool
) -> None:
    await registry.add_session(a_session(), ())
    first, second = await ask_turn(registry, "first"), await ask_turn(registry, "second")
    session = await end_turn(registry, first, IDS, revision=0)
    assert session is not None
    assert await end_turn(registry, second, OTHER_IDS, main=main, revision=0) is None
    assert await registry.turn("acme", "second") is None
    assert await registry.session("acme", "s1") == session
    assert await registry.session_tokens("acme", "s1") == IDS


async def test_a_turn_that_ended_changes_no_more(registry: Registry) -> None:
    await registry.add_session(a_session(), ())
    turn = await ask_turn(registry)
    session = await end_turn(registry, turn, IDS)
    ended = await registry.turn("acme", "t1")
    for main in (True, False):
        assert await end_turn(registry, turn, OTHER_IDS, main=main) is None
    await registry.drop_turn(turn)
    assert await registry.turn("acme", "t1") == ended
    assert await registry.session("acme", "s1") == session
    assert await registry.session_tokens("acme", "s1") == IDS


async def test_a_turn_that_left_no_answer_is_forgotten(registry: Registry) -> None:
    await registry.add_session(a_session(), ())
    turn = await ask_turn(registry)
    await registry.drop_turn(turn)
    assert await registry.turns("acme", "s1", TurnQuery()) == []
    assert await end_turn(registry, turn, IDS) is None
    assert (await ask_turn(registry)).number == 2


async def test_turns_end_and_sessions_go_at_once_without_a_trace_of_either(
    registry: Registry, other_replica: Registry, database: Database
) -> None:
    for number in range(16):
        await registry.add_session(a_session(), IDS)
        turn = await ask_turn(registry, f"t{number}")
        ends = end_turn(registry, turn, OTHER_IDS, messages=[HELLO], main=bool(number % 4))
        removal = other_replica.remove_session("acme", "s1", LATER)
        await asyncio.gather(*((ends, removal) if number % 2 else (removal, ends)))
        assert await registry.session("acme", "s1", any_state=True) is None
    assert await _count(database, turns) == await _count(database, turn_contents) == 0


async def test_a_turn_that_is_dropped_as_it_ends_is_whole_or_gone(
    registry: Registry, other_replica: Registry
) -> None:
    await registry.add_session(a_session(), ())
    for number in range(16):
        turn = await ask_turn(registry, f"t{number}")
        session, _ = await asyncio.gather(end_turn(registry, turn, IDS), other_replica.drop_turn(turn))
        current = await registry.current_turn("acme", "s1")
        assert (session is not None) == (await registry.turn("acme", turn.id) is not None)
        assert (session is not None) == (current is not None and current.id == turn.id)


async def test_pages_of_turns_begin_with_the_newest(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.add_session(a_session("s2"), IDS)
    for number in range(2, 6):
        await ask_turn(registry, f"t{number}")
    seen, before = list[int](), None
    while page := await registry.turns("acme", "s1", TurnQuery(2, before)):
        seen += [turn.number for turn in page]
        before = seen[-1]
    assert seen == [5, 4, 3, 2, 1]


async def test_turns_of_a_frozen_session_are_listed(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    assert [turn.number for turn in await registry.turns("acme", "s1", TurnQuery())] == [1]


@pytest.mark.parametrize("with_window", [True, False])
async def test_a_removed_session_takes_its_turns_and_messages_along(
    registry: Registry, database: Database, with_window: bool
) -> None:
    await registry.add_session(a_session(), ())
    await end_turn(registry, await ask_turn(registry), IDS, messages=[HELLO])
    await ask_turn(registry, "awaited")
    if with_window:
        session = await registry.session("acme", "s1")
        assert session is not None
        assert await registry.expire_session(session, LATER)
        await registry.begin_freeze(a_window(), IDS, session.revision)
    await registry.remove_session("acme", "s1", LATER)
    assert (await registry.session("acme", "s1", any_state=True) is not None) == with_window
    assert await _count(database, turns) == await _count(database, turn_contents) == 0


async def test_a_turn_is_found_by_what_its_author_said(registry: Registry) -> None:
    await registry.add_session(a_session(owner="ann"), ())
    await registry.add_session(a_session("bobs", owner="bob"), ())
    await registry.add_session(a_session(tenant="other", owner="ann"), ())
    asked = await ask_turn(registry, "t1", author="ann", chain="short", asked_at=NOW)
    await end_turn(registry, asked, IDS, chain="long", calls="called", core_chain="core")
    await ask_turn(registry, "t2", author="ann", chain="short", asked_at=SOON)
    await ask_turn(registry, "t3", author="ann", chain="short", asked_at=NOW)
    await ask_turn(registry, "t4", author="bob", chain="longest", asked_at=NOW)
    await ask_turn(registry, "t5", author="ann", asked_at=LATER)
    await ask_turn(registry, "t6", session_id="bobs", author="ann", chain="longest", asked_at=LATER)

    async def found(tenant: str, kind: KeyKind, *keys: str, model: str = "tiny") -> list[str]:
        return [one.turn.id for one in await registry.recorded_answers(tenant, "ann", model, kind, keys)]

    assert await found("acme", KeyKind.CHAIN, "longest", "long", "short") == ["t1"]
    assert await found("acme", KeyKind.CHAIN, "short", "long") == ["t2", "t3"]
    assert await found("acme", KeyKind.CHAIN, "longest") == []
    assert await found("acme", KeyKind.CHAIN, "long", model="another") == []
    assert await found("other", KeyKind.CHAIN, "long", "short") == []
    assert await found("acme", KeyKind.CALLS, "long", "called") == ["t1"]
    assert await found("acme", KeyKind.CORE_CHAIN, "core") == ["t1"]


async def test_of_equal_answers_the_oldest_that_nobody_went_on_from_comes_first(registry: Registry) -> None:
    for number, name in enumerate(("first", "second", "third", "gone")):
        await registry.add_session(a_session(name), ())
        at = NOW + timedelta(seconds=number)
        asked = await ask_turn(registry, f"t-{name}", session_id=name, chain="c", asked_at=at)
        await end_turn(registry, asked, IDS, chain="c", main=True)
    await ask_turn(registry, "next", session_id="first", asked_at=LATER)
    await registry.remove_session("acme", "gone", LATER)
    found = await registry.recorded_answers("acme", asked.author, "tiny", KeyKind.CHAIN, ["c"])
    assert [(one.session.id, one.is_current, one.is_awaited, one.next_number) for one in found] == [
        ("second", True, False, 2),
        ("third", True, False, 2),
        ("first", True, True, 3),
    ]
    assert {one.key for one in found} == {"c"}
    await end_turn(
        registry, await ask_turn(registry, "on", session_id="second", asked_at=LATER), IDS, main=True
    )
    tips = await registry.recorded_answers("acme", asked.author, "tiny", KeyKind.CHAIN, ["c"], current=True)
    assert {one.session.id for one in tips} == {"first", "third"}
    assert [turn.id for turn in await registry.turns_in_flight("acme", asked.author)] == ["next"]
    assert await registry.turns_in_flight("acme", "nobody") == []


async def test_a_turn_may_be_asked_only_if_it_gets_a_number(registry: Registry) -> None:
    await registry.add_session(a_session(), ())
    assert await registry.begin_turn(a_turn("t1"), NOW, 2) is None
    assert await registry.begin_turn(a_turn("t2"), NOW, 1) is not None
    assert await registry.begin_turn(a_turn("t3"), NOW, 1) is None
    assert await registry.begin_turn(a_turn("t4"), NOW, 2) is not None


async def test_what_was_asked_in_turns_of_several_sessions_is_read_at_once(registry: Registry) -> None:
    asked: list[Turn] = []
    for session_id in ("s1", "s2"):
        await registry.add_session(a_session(session_id), ())
        asked.append(await ask_turn(registry, f"t-{session_id}", session_id=session_id))
    await registry.add_session(a_session("empty"), ())
    await end_turn(registry, asked[0], IDS[:50], messages=[REPLY, HELLO, REPLY])
    await end_turn(registry, asked[1], IDS[:50], messages=[HELLO])
    current = await registry.current_turns("acme", ["s1", "s2", "empty", "unknown"])
    assert {session_id: turn.id for session_id, turn in current.items()} == {"s1": "t-s1", "s2": "t-s2"}
    assert current["s1"] == await registry.turn("acme", "t-s1")
    hello = in_brief(HELLO.content)
    assert await registry.titles("acme", ["t-s1", "t-s2", "unknown"]) == {"t-s1": hello, "t-s2": hello}
    assert await registry.current_turns("bolt", ["s1"]) == {}
    assert await registry.titles("bolt", ["t-s1"]) == {}
    assert await registry.current_turns("acme", []) == {}
    assert await registry.titles("acme", []) == {}


async def _count(database: Database, table: Any) -> int:
    counting = select(func.count()).select_from(table)
    return await database.read(lambda connection: connection.execute(counting).scalar_one())


async def test_a_tag_that_is_moved_and_removed_at_once_leaves_no_turn_without_need(
    registry: Registry, other_replica: Registry, database: Database
) -> None:
    for at in range(6):
        names = [f"s{at}a", f"s{at}b"]
        for name in names:
            await registry.add_session(a_session(name), IDS)
        first, second = [await registry.current_turn("acme", name) for name in names]
        assert first is not None
        assert second is not None
        tags = [TurnTag("acme", "t", turn.session_id, turn.id, "ann", NOW) for turn in (first, second)]
        assert await registry.tag(tags[0]) == tags[0]
        await asyncio.gather(*(registry.remove_session("acme", name, LATER) for name in names[:1]))
        moved, removed, _ = await asyncio.gather(
            registry.tag(tags[1], move=True),
            other_replica.untag("acme", "t"),
            other_replica.remove_session("acme", names[1], LATER),
        )
        assert moved in {None, tags[1]}
        assert removed in tags
        left = await registry.untag("acme", "t")
        assert left in {None, tags[1]}
        for name in names:
            assert await registry.session("acme", name, any_state=True) is None
    assert await _count(database, turns) == 0
