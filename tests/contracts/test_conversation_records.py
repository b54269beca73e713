"""What every record of conversations owes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.reseal import Reseal
from cwm.adapters.sql.tables.responses import conversation_items, conversations
from cwm.adapters.sql.turns.conversations import SqlConversations
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import StorageCorruptionError, StorageKeyError, StoredTooLargeError
from cwm.domain.response import Item, ItemPage, ItemQuery, ItemSum, StoredConversation
from cwm.domain.session import SessionsSince
from cwm.domain.weight import MOST_AT_ONCE, compact_ascii, weight_of
from cwm.ports.conversations import ConversationRecords
from tests.contracts.nouns import IDS, LATER, NOW, Damage, a_session, a_window

pytestmark = pytest.mark.slow

WHOSE = ("acme", "ann", "conv_1")
OTHERS = (("acme", "bob"), ("bolt", "ann"))


def a_conversation(
    conversation_id: str = "conv_1", owner: str = "ann", session_id: str | None = None
) -> StoredConversation:
    return StoredConversation(
        "acme", conversation_id, owner, NOW, NOW, {"topic": "half of a pair: \ud800\0"}, session_id
    )


def an_item(item_id: str) -> Item:
    return {"role": "user", "id": item_id, "content": f"half of a pair: \ud800 {item_id}"}


FEW = [an_item("a"), an_item("b")]


async def test_a_conversation_is_read_as_it_was_added(conversation_records: ConversationRecords) -> None:
    await conversation_records.add(a_conversation(), FEW)
    assert await conversation_records.conversation(*WHOSE) == a_conversation()
    assert await conversation_records.items(*WHOSE) == FEW


async def test_somebody_elses_conversation_is_not_there(conversation_records: ConversationRecords) -> None:
    await conversation_records.add(a_conversation(), FEW)
    for tenant, owner in OTHERS:
        whose = (tenant, owner, "conv_1")
        assert await conversation_records.conversation(*whose) is None
        assert await conversation_records.items(*whose) == []
        theirs = replace(a_conversation(owner=owner), tenant=tenant)
        assert not await conversation_records.change(theirs, [an_item("c")])
        assert not await conversation_records.remove_item(*whose, "a")
        assert not await conversation_records.remove(*whose)
        assert await conversation_records.hold(*whose, "theirs") is None
    assert await conversation_records.hold(*WHOSE, "hers") is None
    assert await conversation_records.items(*WHOSE) == FEW


async def test_a_conversation_is_changed_and_items_are_appended(
    conversation_records: ConversationRecords, registry: SqlRegistry
) -> None:
    await registry.add_session(a_session(), ())
    await conversation_records.add(a_conversation(), [])
    changed = replace(a_conversation(session_id="s1"), metadata={}, touched_at=LATER, last_response="resp_1")
    assert await conversation_records.change(changed, FEW)
    assert await conversation_records.change(changed, [an_item("c")])
    assert await conversation_records.conversation(*WHOSE) == changed
    assert await conversation_records.items(*WHOSE) == [*FEW, an_item("c")]
    assert await conversation_records.change(replace(changed, session_id="gone"))
    assert await conversation_records.conversation(*WHOSE) == changed


async def test_without_an_item_no_response_has_all_that_was_said(
    conversation_records: ConversationRecords,
) -> None:
    await conversation_records.add(replace(a_conversation(), last_response="resp_1"), FEW)
    assert not await conversation_records.remove_item(*WHOSE, "c")
    assert await conversation_records.conversation(*WHOSE) != a_conversation()
    assert await conversation_records.remove_item(*WHOSE, "a")
    assert await conversation_records.conversation(*WHOSE) == a_conversation()
    assert await conversation_records.items(*WHOSE) == FEW[1:]


async def test_a_conversation_is_removed_with_its_items(conversation_records: ConversationRecords) -> None:
    await conversation_records.add(a_conversation(), FEW)
    assert await conversation_records.remove(*WHOSE)
    assert not await conversation_records.remove(*WHOSE)
    assert not await conversation_records.change(a_conversation(), [an_item("c")])
    await conversation_records.add(a_conversation(), [])
    assert await conversation_records.items(*WHOSE) == []


async def test_one_holds_a_conversation_at_a_time(conversation_records: ConversationRecords) -> None:
    await conversation_records.add(a_conversation(), [])
    assert await conversation_records.hold(*WHOSE, "one") is None
    assert await conversation_records.hold(*WHOSE, "two") == "one"
    assert await conversation_records.hold(*WHOSE, "two", instead_of="none") == "one"
    await conversation_records.let_go(*WHOSE, "two")
    assert await conversation_records.hold(*WHOSE, "two", instead_of="one") is None
    await conversation_records.let_go(*WHOSE, "two")
    assert await conversation_records.hold(*WHOSE, "three") is None


async def test_a_conversation_goes_with_its_session_although_a_window_keeps_its_turns(
    conversation_records: ConversationRecords, registry: SqlRegistry
) -> None:
    session = await registry.add_session(a_session(), IDS)
    turn = await registry.current_turn("acme", session.id)
    assert turn is not None
    await registry.begin_freeze(a_window(session_id=session.id, turn_id=turn.id), IDS, None)
    await conversation_records.add(a_conversation(session_id=session.id), FEW)
    await registry.remove_session("acme", session.id, NOW)
    assert await conversation_records.conversation(*WHOSE) is None


async def test_a_conversation_moves_with_the_session_that_its_session_becomes_part_of(
    conversation_records: ConversationRecords, registry: SqlRegistry
) -> None:
    source, target = [await registry.add_session(a_session(name), ()) for name in ("s1", "s2")]
    await conversation_records.add(a_conversation(session_id="s1"), FEW)
    assert await registry.merge_sessions(source, target, LATER) is not None
    moved = await conversation_records.conversation(*WHOSE)
    assert moved == a_conversation(session_id="s2")


async def test_the_conversations_of_an_owner_are_listed_page_by_page(
    conversation_records: ConversationRecords,
) -> None:
    mine = [a_conversation(f"c{number}") for number in range(3)]
    for conversation in (*mine, a_conversation("theirs", "bob")):
        await conversation_records.add(conversation, [])
    assert await conversation_records.of_owner("acme", "ann", limit=2) == mine[:2]
    assert await conversation_records.of_owner("acme", "ann", "c1", limit=2) == mine[2:]


async def test_conversations_without_a_session_are_unused_once_nobody_touches_them(
    conversation_records: ConversationRecords, registry: SqlRegistry
) -> None:
    await registry.add_session(a_session(), ())
    for conversation_id, session_id in (("c1", None), ("c2", "s1"), ("c3", "gone")):
        await conversation_records.add(a_conversation(conversation_id, session_id=session_id), [])
    for query, expected in (
        (SessionsSince(NOW, 9), []),
        (SessionsSince(LATER, 9), ["c1", "c3"]),
        (SessionsSince(LATER, 1), ["c1"]),
        (SessionsSince(LATER, 9, "bolt"), []),
        (SessionsSince(LATER, 9, but=frozenset({"acme"})), []),
    ):
        unused = await conversation_records.unused_of_every_tenant(query)
        assert sorted(each.id for each in unused) == expected or len(unused) == query.limit


def weight(*items: Item) -> int:
    return sum(weight_of(compact_ascii(item)) for item in items)


async def _page(records: ConversationRecords, **query: Any) -> tuple[list[str], bool]:
    page = await records.page(*WHOSE, ItemQuery(**query))
    assert page is not None
    return [item["id"] for item in page.items], page.has_more


async def test_a_page_has_the_items_behind_another(conversation_records: ConversationRecords) -> None:
    await conversation_records.add(a_conversation(), [an_item(name) for name in "abcde"])
    records = conversation_records
    assert await _page(records, limit=2, descending=False) == (["a", "b"], True)
    assert await _page(records, limit=2, descending=False, after="b") == (["c", "d"], True)
    assert await _page(records, limit=2, descending=False, after="d") == (["e"], False)
    assert await _page(records, limit=3) == (["e", "d", "c"], True)
    assert await _page(records, limit=3, after="c") == (["b", "a"], False)
    assert await records.page(*WHOSE, ItemQuery(after="nobody")) is None
    assert await records.page("acme", "bob", "conv_1", ItemQuery()) == ItemPage([], has_more=False, weight=0)


async def test_a_page_ends_where_its_items_would_take_too_much_memory(
    conversation_records: ConversationRecords,
) -> None:
    items = [{"id": name, "content": [0] * (MOST_AT_ONCE // 200)} for name in "abc"]
    await conversation_records.add(a_conversation(), items)
    assert await _page(conversation_records, descending=False) == (["a", "b"], True)
    assert await _page(conversation_records, descending=False, after="b") == (["c"], False)
    with pytest.raises(StoredTooLargeError):
        await conversation_records.items(*WHOSE)
    assert len(await conversation_records.items(*WHOSE, 2 * MOST_AT_ONCE)) == 3


async def test_an_item_is_found_by_its_id(conversation_records: ConversationRecords) -> None:
    await conversation_records.add(a_conversation(), FEW)
    assert await conversation_records.item(*WHOSE, "b") == an_item("b")
    assert await conversation_records.item(*WHOSE, "c") is None
    assert await conversation_records.ids_among(*WHOSE, ["b", "c"]) == {"b"}
    for tenant, owner in OTHERS:
        assert await conversation_records.item(tenant, owner, "conv_1", "b") is None
        assert await conversation_records.ids_among(tenant, owner, "conv_1", ["b"]) == set()
        assert await conversation_records.sum(tenant, owner, "conv_1") == ItemSum(0, 0)


async def test_the_sum_of_its_items_is_kept_beside_a_conversation(
    conversation_records: ConversationRecords,
) -> None:
    await conversation_records.add(a_conversation(), FEW)
    assert await conversation_records.sum(*WHOSE) == ItemSum(2, weight(*FEW))
    await conversation_records.change(a_conversation(), [an_item("c")])
    assert await conversation_records.sum(*WHOSE) == ItemSum(3, weight(*FEW, an_item("c")))
    await conversation_records.remove_item(*WHOSE, "a")
    assert await conversation_records.sum(*WHOSE) == ItemSum(2, weight(an_item("b"), an_item("c")))


async def test_items_from_before_there_were_weights_are_weighed_when_they_are_needed(
    conversation_records: ConversationRecords, database: Database
) -> None:
    bomb = {"id": "bomb", "content": " " * (MOST_AT_ONCE + 1)}
    await conversation_records.add(a_conversation(), [*FEW, bomb])
    for table, uncounted in ((conversation_items, {}), (conversations, {"item_count": 0})):
        unweighed = update(table).where(table.c.tenant == "acme").values(weight=None, **uncounted)
        await database.write(lambda connection, change=unweighed: connection.execute(change))  # type: ignore[misc]
    assert await _page(conversation_records, descending=False) == (["a", "b"], True)
    with pytest.raises(StoredTooLargeError):
        await conversation_records.item(*WHOSE, "bomb")
    stored = await conversation_records.sum(*WHOSE)
    assert (stored.count, stored.weight > weight(*FEW) + MOST_AT_ONCE) == (3, True)
    await conversation_records.remove_item(*WHOSE, "bomb")
    assert await conversation_records.sum(*WHOSE) == ItemSum(2, weight(*FEW))


async def test_a_damaged_item_is_said_to_be_damaged(
    conversation_records: ConversationRecords, damage: Damage
) -> None:
    await conversation_records.add(a_conversation(), FEW[:1])
    await damage("conversation_items")
    with pytest.raises(StorageCorruptionError):
        await conversation_records.items(*WHOSE)


async def test_items_in_the_clear_are_sealed_with_the_rest_of_the_registry(database: Database) -> None:
    vault = Vault(["a key, of more than thirty-two characters"])
    await SqlConversations(database).add(a_conversation(), FEW)
    await SqlConversations(database, vault).change(a_conversation(), [an_item("c")])
    assert "conversation" in [noun async for noun in Reseal(database, vault)()]
    assert "conversation" not in [noun async for noun in Reseal(database, vault)()]
    assert await SqlConversations(database, vault).items(*WHOSE) == [*FEW, an_item("c")]
    with pytest.raises(StorageKeyError):
        await SqlConversations(database).items(*WHOSE)
