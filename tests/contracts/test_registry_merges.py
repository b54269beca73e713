"""Two sessions become one: no turn, message, tag or window is lost, and each tree hangs where it leaves the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import StorageReadError, TurnInFlightError
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.session import SessionState
from cwm.domain.turn import Message, Turn, TurnParts, TurnQuery, TurnTag
from cwm.ports.registry import Registry
from tests.contracts.nouns import LATER, NOW, a_session, a_turn, a_window, stored

pytestmark = pytest.mark.slow

KEY = "k" * 32
SAID = [Message(f"m{number}", {"role": "user", "content": f"word {number}"}) for number in range(6)]
SYSTEM = (1, 2, 3)


@pytest.fixture(params=[(), (KEY,)], ids=["clear", "sealed"])
def registry(database: Database, request: pytest.FixtureRequest) -> SqlRegistry:
    return SqlRegistry(database, "gateway-1", Vault(request.param))


async def took(
    registry: Registry,
    session_id: str,
    minute: int,
    context: TokenIds,
    messages: Sequence[Message],
    parent: Turn | None = None,
    *,
    main: bool = True,
) -> Turn:
    """A turn of a prompt and the two tokens of its answer, asked so many minutes after the start, that goes on with its parent."""
    turn = a_turn(f"{session_id}-{minute}", session_id, asked_at=NOW + timedelta(minutes=minute))
    asked = await registry.begin_turn(turn, NOW)
    assert asked is not None
    at, said = (0, 0) if parent is None else (parent.total_tokens, 1 + parent.parent_messages)
    prompt = len(context) - 2
    ended = replace(
        asked,
        parent=None if parent is None else parent.id,
        parent_at=at,
        parent_messages=said,
        prompt_tokens=prompt,
        total_tokens=len(context),
        prompt_digest=digest(context[:prompt]),
        digest=digest(context),
        continues=parent is not None,
        main=main,
        ended_at=LATER,
    )
    assert await registry.end_turn(ended, TurnParts(context[at:], tuple(messages[said:]))) is not None
    recorded = await registry.turn("acme", turn.id)
    assert recorded is not None
    return recorded


FIRST = (*SYSTEM, 10, 11, 80, 81)
SECOND = (*FIRST, 20, 82, 83)
ELSEWHERE = (*FIRST, 30, 84, 85)
FARTHER = (*ELSEWHERE, 31, 86, 87)
OTHER = (9, 9, 9)


@pytest.fixture
async def both(registry: SqlRegistry) -> list[Turn]:
    """What was said in two sessions by turns, the second of which goes on from the first's first turn."""
    for session_id in ("s1", "s2"):
        await registry.add_session(a_session(session_id, metadata={"of": session_id}), ())
    first = await took(registry, "s1", 1, FIRST, SAID[:1])
    elsewhere = await took(registry, "s2", 3, ELSEWHERE, [SAID[0], SAID[1]])
    second = await took(registry, "s1", 2, SECOND, [SAID[0], SAID[2]], first)
    other = await took(registry, "s2", 4, OTHER, [SAID[3]], main=False)
    farther = await took(registry, "s2", 5, FARTHER, [SAID[0], SAID[1], SAID[4]], elsewhere)
    return [first, second, elsewhere, other, farther]


async def test_turns_keep_what_they_are_and_get_the_order_in_which_they_were_asked(
    registry: SqlRegistry, both: list[Turn]
) -> None:
    before = {
        turn.id: (await registry.turn_tokens(turn), await registry.turn_messages(turn)) for turn in both
    }
    merged = await registry.merge_sessions(a_session("s2"), a_session("s1"), LATER)
    assert merged is not None
    assert (merged.id, merged.token_count, merged.metadata["of"]) == ("s1", len(FARTHER), "s1")
    turns = [*reversed(await registry.turns("acme", "s1", TurnQuery()))]
    assert [(turn.id, turn.number) for turn in turns] == [(turn.id, n) for n, turn in enumerate(both, 1)]
    assert {
        turn.id: (await registry.turn_tokens(turn), await registry.turn_messages(turn)) for turn in turns
    } == before
    assert [(turn.parent, turn.parent_at, turn.parent_messages, turn.continues) for turn in turns] == [
        (None, 0, 0, False),
        ("s1-1", len(FIRST), 1, True),
        ("s1-1", len(FIRST), 1, True),
        (None, 0, 0, False),
        ("s2-3", len(ELSEWHERE), 1, True),
    ]
    assert await registry.current_turn("acme", "s1") == turns[4]
    assert await registry.session_tokens("acme", "s1") == FARTHER
    assert await registry.session("acme", "s2", any_state=True) is None
    assert await registry.begin_turn(a_turn("next", "s1"), NOW) == a_turn(
        "next", "s1", number=6, holder="gateway-1"
    )


async def test_the_session_that_was_used_last_decides_what_is_current(
    registry: SqlRegistry, both: list[Turn]
) -> None:
    assert await registry.merge_sessions(a_session("s1"), a_session("s2"), LATER) is not None
    turns = [*reversed(await registry.turns("acme", "s2", TurnQuery()))]
    assert [turn.id for turn in turns] == [turn.id for turn in both]
    assert [turn.parent for turn in turns] == [None, "s1-1", "s1-1", None, "s2-3"]
    assert await registry.current_turn("acme", "s2") == turns[4]


async def test_tags_and_windows_move_along(registry: SqlRegistry, both: list[Turn]) -> None:
    tag = TurnTag("acme", "there", "s2", both[2].id, "ann", NOW)
    assert await registry.tag(tag) == tag
    window = a_window("w", session_id="s2", turn_id=both[4].id)
    await registry.begin_freeze(window, FARTHER, None)
    frozen = await registry.window("acme", "w")
    assert frozen is not None
    with pytest.raises(StorageReadError):
        await registry.merge_sessions(a_session("s2"), a_session("s1"), LATER)
    await registry.finish_freeze(frozen, stored("aa"), LATER)
    assert await registry.merge_sessions(a_session("s2"), a_session("s1"), LATER) is not None
    assert [each.session_id for each in await registry.tags("acme")] == ["s1"]
    moved = await registry.window("acme", "w")
    assert moved is not None
    assert (moved.session_id, moved.turn_id) == ("s1", both[4].id)
    await registry.remove_session("acme", "s1", LATER)
    assert await registry.turn_tokens(both[4]) == FARTHER
    assert await registry.turn("acme", both[1].id) is None


async def test_a_message_that_one_of_both_keeps_is_kept(registry: SqlRegistry) -> None:
    for session_id, message in (("s1", Message("m0")), ("s2", SAID[0])):
        await registry.add_session(a_session(session_id), ())
        await took(registry, session_id, 1 if session_id == "s1" else 2, FIRST, [message])
    assert await registry.merge_sessions(a_session("s2"), a_session("s1"), LATER) is not None
    for turn in await registry.turns("acme", "s1", TurnQuery()):
        assert turn.parent is None
        assert await registry.turn_messages(turn) == [SAID[0]]


@pytest.mark.parametrize(("found", "named"), [("s1", "s2"), ("s2", "s1")])
async def test_what_a_client_named_is_kept_for_as_long_as_that(
    registry: SqlRegistry, found: str, named: str
) -> None:
    await registry.add_session(a_session(found, metadata={"found_by": "content"}), ())
    await registry.add_session(a_session(named, metadata={"found_by": "client"}), ())
    merged = await registry.merge_sessions(a_session("s2"), a_session("s1"), LATER)
    assert merged is not None
    assert merged.metadata == {}


async def test_an_empty_session_is_merged_and_merged_into(registry: SqlRegistry, both: list[Turn]) -> None:
    await registry.add_session(a_session("empty"), ())
    assert await registry.merge_sessions(a_session("empty"), a_session("s1"), LATER) is not None
    await registry.add_session(a_session("empty"), ())
    merged = await registry.merge_sessions(a_session("s1"), a_session("empty"), LATER)
    assert merged is not None
    assert (merged.token_count, merged.state) == (len(SECOND), SessionState.ACTIVE)
    assert len(await registry.turns("acme", "empty", TurnQuery())) == 2


@pytest.mark.parametrize("session_id", ["s1", "s2"])
async def test_no_session_is_merged_while_a_turn_is_in_flight(
    registry: SqlRegistry, both: list[Turn], session_id: str
) -> None:
    asked = await registry.begin_turn(a_turn("asked", session_id), NOW)
    assert asked is not None
    with pytest.raises(TurnInFlightError):
        await registry.merge_sessions(a_session("s2"), a_session("s1"), LATER)
    assert await registry.turn("acme", both[4].id) == both[4]
    await registry.drop_turn(asked)
    assert await registry.merge_sessions(a_session("s2"), a_session("s1"), LATER) is not None
    assert await registry.begin_turn(a_turn("later", "s2"), NOW) is None


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (a_session("s2", created_at=LATER), a_session("s1")),
        (a_session("s2"), a_session("s1", created_at=LATER)),
        (a_session("s2", circle="owner:ann"), a_session("s1")),
        (a_session("s2", salt_scope="another"), a_session("s1")),
        (a_session("nobody"), a_session("s1")),
    ],
)
@pytest.mark.usefixtures("both")
async def test_sessions_that_changed_meanwhile_stay_apart(
    registry: SqlRegistry, source: object, target: object
) -> None:
    assert await registry.merge_sessions(source, target, LATER) is None  # type: ignore[arg-type]
    assert await registry.session("acme", "s2") is not None


@pytest.mark.usefixtures("both")
async def test_nothing_is_merged_into_a_session_that_takes_no_turns(registry: SqlRegistry) -> None:
    target = await registry.session("acme", "s1")
    assert target is not None
    assert await registry.expire_session(target, LATER)
    assert await registry.merge_sessions(a_session("s2"), a_session("s1"), LATER) is None
    assert await registry.merge_sessions(a_session("s1"), a_session("s2"), LATER) is not None
