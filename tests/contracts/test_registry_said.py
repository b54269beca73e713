"""What every registry owes of what was said: titles, and messages that are read within bounds."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest
from sqlalchemy import delete, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.adapters.sql.turns.stored_bytes import SqlStoredBytes
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import StoredTooLargeError
from cwm.domain.messages import in_brief
from cwm.domain.turn import Message
from cwm.domain.weight import MOST_AT_ONCE
from cwm.domain.word_search import Words
from cwm.ports.registry import Registry
from tests.contracts.nouns import IDS, NOW, a_session, ask_turn, end_turn

pytestmark = pytest.mark.slow

LONG: Final = 100_000
KEY: Final = "a key of a test, thirty-two characters"
HELLO: Final = Message("hello", {"role": "user", "content": "Hello \ud800 é\u0000"})
REPLY: Final = Message("reply", {"role": "assistant", "content": None, "tool_calls": [{"z": 1, "a": 2.0}]})


@pytest.fixture(params=[(), (KEY,)], ids=["clear", "sealed"])
def registry(database: Database, request: pytest.FixtureRequest) -> SqlRegistry:
    return SqlRegistry(database, vault=Vault(request.param))


async def test_a_title_is_told_without_its_message(registry: Registry, database: Database) -> None:
    await registry.add_session(a_session(), ())
    turn = await ask_turn(registry)
    said = {"role": "user", "content": "what was asked " * 1000}
    await end_turn(registry, turn, IDS, messages=[HELLO, Message("long", said), REPLY])
    gone = delete(turn_contents).where(turn_contents.c.tenant == "acme")
    await database.write(lambda connection: connection.execute(gone))
    assert await registry.titles("acme", ["t1"]) == {"t1": in_brief(said)}


async def test_a_session_that_begins_with_a_turn_has_its_title(registry: Registry) -> None:
    await registry.add_session(a_session(), ())
    await end_turn(registry, await ask_turn(registry), IDS, messages=[HELLO, REPLY])
    await registry.add_session(a_session("branch"), IDS, source_turn="t1")
    begun = await registry.current_turn("acme", "branch")
    assert begun is not None
    assert await registry.titles("acme", [begun.id]) == {begun.id: in_brief(HELLO.content)}


async def test_of_turns_without_a_title_a_small_message_is_read(
    registry: Registry, database: Database
) -> None:
    await registry.add_session(a_session(), ())
    large = Message("large", {"role": "user", "content": [{}] * 10_000})
    asked = [await ask_turn(registry, name) for name in ("t1", "t2")]
    await end_turn(registry, asked[0], IDS, messages=[HELLO, REPLY])
    await end_turn(registry, asked[1], IDS, messages=[large, REPLY])
    await _before_titles(database)
    assert await registry.titles("acme", ["t1", "t2"]) == {"t1": in_brief(HELLO.content)}


async def test_messages_of_a_context_are_read_by_their_positions(registry: Registry) -> None:
    await registry.add_session(a_session(), ())
    turn = await ask_turn(registry)
    said = [Message(f"m{number}", {"n": number}) for number in range(5)]
    await end_turn(registry, turn, IDS, messages=said)
    assert await registry.turn_messages(turn, 1, 3) == said[1:3]
    assert await registry.turn_messages(turn, -1) == said[-1:]
    assert await registry.turn_messages(turn, 5) == []


@pytest.mark.parametrize("are_weighed", [True, False])
async def test_messages_that_take_too_much_memory_together_are_told_apart(
    registry: Registry, database: Database, *, are_weighed: bool
) -> None:
    await registry.add_session(a_session(), ())
    turn = await ask_turn(registry)
    parts = [Message(f"m{n}", {"n": n, "content": [0] * (MOST_AT_ONCE // 270)}) for n in range(4)]
    await end_turn(registry, turn, IDS, messages=parts)
    if not are_weighed:
        await _before_titles(database)
    read = await registry.turn_messages(turn)
    assert [each.digest for each in read] == [each.digest for each in parts]
    shown = [each for each in read if "n" in each.content]
    assert len(shown) == 3
    (other,) = (each for each in read if each not in shown)
    assert other.content["role"] == "not shown"
    assert await registry.turn_messages(turn, 0, 3, whole=True) == parts[:3]
    with pytest.raises(StoredTooLargeError):
        await registry.turn_messages(turn, whole=True)
    assert (await registry.findings("acme", "s1", Words.parse("anything")))[1] == 4


async def test_what_is_stored_is_summed_by_owner_and_given_back(
    registry: Registry, database: Database
) -> None:
    stored = SqlStoredBytes(database)
    assert await stored.by_owner("acme") == {}
    session = await registry.add_session(a_session(), ())
    await registry.add_session(a_session("bobs", owner="bob"), ())
    turn = await ask_turn(registry)
    letters = Random(0).randbytes(LONG).hex()
    long = Message("long", {"role": "user", "content": letters})
    await end_turn(registry, turn, IDS, messages=[HELLO, REPLY])
    before = await stored.by_owner("acme")
    assert before["ann"] > before["bob"] > 0
    other = await ask_turn(registry, "t2")
    await end_turn(registry, other, (*IDS, 1), turn, len(IDS), messages=[long], parent_messages=2, main=False)
    grown = await stored.by_owner("acme")
    assert grown["ann"] - before["ann"] > LONG
    again = await ask_turn(registry, "t3")
    await end_turn(registry, again, (*IDS, 2), turn, len(IDS), messages=[long], parent_messages=2, main=False)
    assert (await stored.by_owner("acme"))["ann"] - grown["ann"] < LONG, "it is stored once"
    for each in (other, again):
        await registry.remove_branch(each)
    assert await stored.by_owner("acme") == before
    await registry.remove_session("acme", session.id, NOW)
    assert await stored.by_owner("acme") == {"bob": before["bob"]}
    assert await stored.by_owner("bolt") == {}


async def _before_titles(database: Database) -> None:
    """As a version of CWM left them that kept no titles and weights."""
    untitled = update(turns).where(turns.c.tenant == "acme").values(title=None)
    unweighed = update(turn_contents).where(turn_contents.c.tenant == "acme").values(weight=None)
    for change in (untitled, unweighed):
        await database.write(lambda connection, change=change: connection.execute(change))  # type: ignore[misc]
