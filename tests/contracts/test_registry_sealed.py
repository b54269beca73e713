"""What every registry owes where it has keys: nothing that was said can be read from its tables without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from sqlalchemy import select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.registry.sessions import head_of
from cwm.adapters.sql.reseal import Reseal
from cwm.adapters.sql.tables.columns import metadata
from cwm.adapters.sql.tables.sessions import snapshots
from cwm.adapters.sql.tables.turns import turns
from cwm.adapters.sql.vault import Vault
from cwm.domain.answers import KeyKind
from cwm.domain.canary import Canary, Origin
from cwm.domain.errors import CwmError, StorageCorruptionError, StorageKeyError
from cwm.domain.look import Look
from cwm.domain.messages import message_of
from cwm.domain.prefix import digest, pack
from cwm.domain.turn import Profile, Turn, TurnParts
from tests.contracts.nouns import IDS, LATER, NOW, a_session, a_turn, a_window, stored

pytestmark = pytest.mark.slow

FIRST: Final = "the first key, of thirty-two characters"
SECOND: Final = "the second key, of thirty-two characters"
SAID: Final = message_of({"role": "user", "content": "My colour is heliotrope."})
REPLY: Final = message_of({"role": "assistant", "content": "I keep it."})
PROFILE: Final = Profile("digest of the system text", "digest of the tools")
CHAIN: Final = "digest of what was said so far"
CALLS: Final = "digest of the calls of an answer"
CORE_CHAIN: Final = "digest of what was said without the system text"
CANARY: Final = Canary(Look((33, 65), ({41: -0.1}, {42: -0.2})), Origin.INHERITED)


def opened(database: Database, *keys: str) -> SqlRegistry:
    return SqlRegistry(database, vault=Vault(keys))


async def took(registry: SqlRegistry, turn_id: str = "t1", session_id: str = "s1") -> Turn:
    asked = await registry.begin_turn(
        a_turn(
            turn_id,
            session_id,
            profile=PROFILE,
            chain=CHAIN,
            old_message="digest of an old one",
            new_message="digest of a new one",
        ),
        NOW,
    )
    assert asked is not None
    turn = replace(
        asked,
        prompt_tokens=60,
        total_tokens=len(IDS),
        prompt_digest=digest(IDS[:60]),
        digest=digest(IDS),
        main=True,
        ended_at=LATER,
        calls=CALLS,
        core_chain=CORE_CHAIN,
    )
    assert await registry.end_turn(turn, TurnParts(IDS, (SAID, REPLY)))
    recorded = await registry.turn("acme", turn_id)
    assert recorded is not None
    return recorded


async def stocked(registry: SqlRegistry) -> None:
    """A session with a turn, a window of it with a canary, and a session that begins with the turn."""
    await registry.add_session(a_session(), ())
    await took(registry)
    intent = await registry.begin_freeze(a_window(turn_id="t1"), IDS, None)
    window = a_window(turn_id="t1", snapshot_id=intent.snapshot_id)
    await registry.finish_freeze(window, stored("aa"), LATER, CANARY)
    await registry.add_session(a_session("branch"), IDS, source_turn="t1")


async def requires_all_of_it(registry: SqlRegistry) -> None:
    window = await registry.window("acme", "w1")
    assert window is not None
    assert (await registry.snapshot("acme", window.snapshot_id)).token_ids == IDS
    assert await registry.canary("acme", window.snapshot_id, window.cache_salt) == CANARY
    for session_id in ("s1", "branch"):
        turn = await registry.current_turn("acme", session_id)
        assert turn is not None
        assert (turn.profile, turn.digest) == (PROFILE, digest(IDS))
        assert await registry.turn_tokens(turn) == IDS
        assert await registry.turn_messages(turn) == [SAID, REPLY]
    for kind, key in ((KeyKind.CHAIN, CHAIN), (KeyKind.CALLS, CALLS), (KeyKind.CORE_CHAIN, CORE_CHAIN)):
        answers = await registry.recorded_answers("acme", "ann", "tiny", kind, ["another", key])
        found = {one.turn.session_id: one for one in answers}
        assert found.keys() == {"s1", "branch"}
        assert {one.key for one in answers} == {key}
        assert found["s1"].turn.chain == CHAIN
        assert found["s1"].turn.old_message == "digest of an old one"
    assert await registry.live_sessions_with_head("acme", "acme", IDS) == ["branch", "s1"]


# The pieces of a window's words, whose table is virtual on SQLite.
_TABLES: Final = [table for table in metadata.sorted_tables if table.name != "window_grams"]


async def everything(database: Database) -> str:
    def dump(connection: Any) -> str:
        return "\n".join(repr(row) for table in _TABLES for row in connection.execute(select(table)))

    return await database.read(dump)


async def tells(database: Database) -> set[str]:
    """What of that which was said can be found in the tables as it is."""
    text = await everything(database)
    told = {
        "message": SAID.digest,
        "reply": REPLY.digest,
        "system": PROFILE.system,
        "tools": PROFILE.tools,
        "prompt": digest(IDS[:60]),
        "context": digest(IDS),
        "head": head_of(IDS) or "",
        "chain": CHAIN,
        "old message": "digest of an old one",
        "new message": "digest of a new one",
        "canary": "places",
        "compressed": repr(b"\x28\xb5\x2f\xfd")[2:-1],
        "tokens": repr(pack(IDS[:4]))[2:-1],
        "words": "heliotrope",
    }
    return {name for name, words in told.items() if words in text}


async def sealed(database: Database, *keys: str) -> Counter[str]:
    return Counter([noun async for noun in Reseal(database, Vault(keys))()])


async def test_nothing_that_was_said_is_in_the_tables(database: Database) -> None:
    registry = opened(database, FIRST)
    await stocked(registry)
    assert await tells(database) == set()
    await requires_all_of_it(registry)


async def test_what_is_in_the_clear_can_be_read_and_gone_on_with(database: Database) -> None:
    await stocked(opened(database))
    assert {"message", "context", "head", "canary", "compressed"} <= await tells(database)
    registry = opened(database, FIRST)
    await requires_all_of_it(registry)
    await took(registry, "t2")
    await requires_all_of_it(registry)


@pytest.mark.parametrize(
    "reading",
    [
        lambda registry, _: registry.current_turn("acme", "s1"),
        lambda registry, _: registry.turn_tokens(a_turn()),
        lambda registry, _: registry.turn_messages(a_turn()),
        lambda registry, _: registry.message_digests(a_turn()),
        lambda registry, snapshot_id: registry.snapshot("acme", snapshot_id),
        lambda registry, snapshot_id: registry.canary("acme", snapshot_id, "salt-of-acme"),
        lambda registry, _: registry.add_session(a_session("late"), IDS, source_turn="t1"),
    ],
)
@pytest.mark.parametrize("keys", [(), (SECOND,)], ids=["no key", "another key"])
async def test_without_the_key_an_error_says_which_is_missing(
    database: Database, reading: Callable[[SqlRegistry, str], Awaitable[Any]], keys: tuple[str, ...]
) -> None:
    await stocked(opened(database, FIRST))
    registry = opened(database, *keys)
    window = await registry.window("acme", "w1")
    assert window is not None
    with pytest.raises(StorageKeyError) as refused:
        await reading(registry, window.snapshot_id)
    assert refused.value.code == "CWM-4005"
    assert refused.value.context["key_id"] in window.snapshot_id
    assert await registry.session("acme", "late") is None


async def test_sessions_and_windows_go_without_the_key(database: Database) -> None:
    await stocked(opened(database, FIRST))
    registry = opened(database, SECOND)
    window = await registry.window("acme", "w1")
    assert window is not None
    await registry.remove_window(window, LATER)
    for session_id in ("s1", "branch"):
        await registry.remove_session("acme", session_id, LATER)
    assert await tells(database) == set()
    assert await sealed(database, FIRST) == Counter()


async def test_a_row_that_was_moved_or_changed_does_not_open(database: Database) -> None:
    registry = opened(database, FIRST)
    await stocked(registry)
    other = await took(registry, "t2")
    packed = select(turns.c.packed).where(turns.c.id == "t1").scalar_subquery()
    moved = update(turns).where(turns.c.id == "t2").values(packed=packed)
    await database.write(lambda connection: connection.execute(moved))
    with pytest.raises(StorageCorruptionError):
        await registry.turn_tokens(other)


async def test_the_first_key_encrypts_and_all_of_them_decrypt(database: Database) -> None:
    await stocked(opened(database, FIRST))
    registry = opened(database, SECOND, FIRST)
    await requires_all_of_it(registry)
    await took(registry, "t2")
    await requires_all_of_it(registry)
    with pytest.raises(CwmError):
        await opened(database, FIRST).turn_tokens(a_turn("t2"))


@pytest.mark.parametrize("before", [(), (FIRST,)], ids=["clear", "an older key"])
async def test_what_is_there_already_is_encrypted_with_the_first_key(
    database: Database, before: tuple[str, ...]
) -> None:
    await stocked(opened(database, *before))
    asked = await opened(database, *before).begin_turn(a_turn("asked", "branch", profile=PROFILE), NOW)
    assert await sealed(database, SECOND, *before) == {"session": 2, "snapshot": 1}
    assert await tells(database) == set()
    registry = opened(database, SECOND)
    await requires_all_of_it(registry)
    assert await registry.turn("acme", "asked") == asked
    assert await sealed(database, SECOND) == Counter()


async def test_what_is_damaged_is_told_and_stays(database: Database) -> None:
    await stocked(opened(database))
    await database.write(lambda connection: connection.execute(update(snapshots).values(packed=b"x")))
    assert await sealed(database, FIRST) == {"session": 2, "damaged": 1}


def test_equal_messages_of_two_tenants_have_two_names() -> None:
    vault = Vault([FIRST])
    assert vault.name("acme", SAID.digest) != vault.name("bolt", SAID.digest)
