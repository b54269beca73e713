"""What every record of responses owes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.reseal import Reseal
from cwm.adapters.sql.tables.responses import responses
from cwm.adapters.sql.turns.packed import pack_json
from cwm.adapters.sql.turns.responses import SqlResponses
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import StorageCorruptionError, StorageKeyError, StoredTooLargeError
from cwm.domain.response import StoredResponse
from cwm.domain.weight import compact_ascii, weight_of
from cwm.ports.responses import ResponseRecords
from tests.contracts.nouns import IDS, NOW, Damage, a_session, a_turn, a_window

pytestmark = pytest.mark.slow


def a_response(
    response_id: str = "resp_1", previous: str | None = None, owner: str = "ann", turn: str = "t1"
) -> StoredResponse:
    said = {"type": "message", "id": f"msg_{response_id}", "role": "assistant"}
    return StoredResponse(
        "acme",
        response_id,
        owner,
        "s1",
        turn,
        NOW,
        [{"role": "user", "content": "half of a pair: \ud800"}],
        {"id": response_id, "output": [said]},
        previous,
    )


@pytest.fixture(autouse=True)
async def _a_turn(registry: SqlRegistry) -> None:
    await registry.add_session(a_session(), ())
    for turn_id in ("t1", "t2"):
        assert await registry.begin_turn(a_turn(turn_id, "s1"), NOW) is not None


async def test_a_response_is_read_as_it_was_kept(response_records: ResponseRecords) -> None:
    assert await response_records.keep(a_response())
    assert await response_records.in_line("acme", "ann", ["resp_1"]) == [a_response()]
    assert await response_records.response("acme", "ann", "resp_1") == replace(a_response(), items=())
    assert await response_records.is_found("acme", "ann", "resp_1")


async def test_somebody_elses_response_is_not_there(response_records: ResponseRecords) -> None:
    await response_records.keep(a_response())
    for tenant, owner in (("acme", "bob"), ("bolt", "ann")):
        assert await response_records.response(tenant, owner, "resp_1") is None
        assert not await response_records.is_found(tenant, owner, "resp_1")
        assert await response_records.in_line(tenant, owner, ["resp_1"]) == []
        assert await response_records.line(tenant, owner, "resp_1") == []
        assert await response_records.items(tenant, owner, ["msg_resp_1"]) == {}
        assert not await response_records.hide(tenant, owner, "resp_1")
    assert await response_records.response("acme", "ann", "resp_1") is not None


async def test_a_line_begins_where_the_conversation_did(response_records: ResponseRecords) -> None:
    line = [a_response(f"r{n}", f"r{n - 1}" if n else None, turn="t1") for n in range(5)]
    for response in line:
        await response_records.keep(response)
    entries = await response_records.line("acme", "ann", "r4")
    assert [(entry.id, entry.session_id) for entry in entries] == [(f"r{n}", "s1") for n in range(5)]
    assert {entry.weight for entry in entries} == {
        sum(weight_of(compact_ascii(each)) for each in (line[0].items, line[0].content))
    }
    assert await response_records.line("acme", "ann", "r1") == entries[:2]
    assert await response_records.in_line("acme", "ann", [entry.id for entry in entries]) == line
    assert await response_records.line("acme", "ann", "none") == []


async def test_a_line_through_somebody_elses_response_is_none(response_records: ResponseRecords) -> None:
    await response_records.keep(a_response("theirs", owner="bob"))
    await response_records.keep(a_response("mine", "theirs"))
    assert await response_records.line("acme", "ann", "mine") == []


async def test_a_hidden_response_is_not_found_and_what_goes_on_from_it_is(
    response_records: ResponseRecords,
) -> None:
    await response_records.keep(a_response("r1"))
    await response_records.keep(a_response("r2", "r1"))
    assert await response_records.hide("acme", "ann", "r1")
    assert not await response_records.hide("acme", "ann", "r1")
    assert await response_records.response("acme", "ann", "r1") is None
    assert not await response_records.is_found("acme", "ann", "r1")
    assert await response_records.line("acme", "ann", "r1") == []
    assert await response_records.items("acme", "ann", ["msg_r1"]) == {}
    assert [each.id for each in await response_records.line("acme", "ann", "r2")] == ["r1", "r2"]


async def test_items_of_answers_are_found_by_their_ids(response_records: ResponseRecords) -> None:
    for response_id in ("r1", "r2"):
        await response_records.keep(a_response(response_id))
    found = await response_records.items("acme", "ann", ["msg_r1", "msg_r2", "msg_r3"])
    assert found == {f"msg_{name}": a_response(name).output[0] for name in ("r1", "r2")}


async def test_a_response_goes_with_its_turn(
    response_records: ResponseRecords, registry: SqlRegistry
) -> None:
    await response_records.keep(a_response("r1", turn="t1"))
    await response_records.keep(a_response("r2", turn="t2"))
    await registry.drop_turn(a_turn("t1", "s1"))
    assert await response_records.response("acme", "ann", "r1") is None
    assert await response_records.response("acme", "ann", "r2") is not None
    await registry.remove_session("acme", "s1", NOW)
    assert await response_records.response("acme", "ann", "r2") is None
    assert not await response_records.keep(a_response("r3"))


async def test_a_response_goes_with_its_session_although_a_window_keeps_the_turn(
    response_records: ResponseRecords, registry: SqlRegistry
) -> None:
    session = await registry.add_session(a_session("s2"), IDS)
    turn = await registry.current_turn("acme", "s2")
    assert turn is not None
    kept = a_response("r1", turn=turn.id)
    await response_records.keep(replace(kept, session_id="s2"))
    window = a_window(session_id="s2", turn_id=turn.id)
    await registry.begin_freeze(window, IDS, None)
    await registry.remove_session("acme", session.id, NOW)
    assert await registry.turn("acme", turn.id) is not None
    assert await response_records.response("acme", "ann", "r1") is None


async def test_the_responses_of_an_owner_are_listed_page_by_page(response_records: ResponseRecords) -> None:
    for response in (*(a_response(f"r{n}") for n in range(3)), a_response("theirs", owner="bob")):
        await response_records.keep(response)
    await response_records.hide("acme", "ann", "r1")
    assert await response_records.ids_of_owner("acme", "ann", limit=2) == ["r0", "r1"]
    assert await response_records.ids_of_owner("acme", "ann", "r1", limit=2) == ["r2"]


async def test_a_response_that_takes_too_much_memory_is_not_read(response_records: ResponseRecords) -> None:
    await response_records.keep(a_response("r1"))
    (entry,) = await response_records.line("acme", "ann", "r1")
    assert await response_records.in_line("acme", "ann", ["r1"], entry.weight) == [a_response("r1")]
    with pytest.raises(StoredTooLargeError):
        await response_records.in_line("acme", "ann", ["r1"], entry.weight - 1)
    assert await response_records.items("acme", "ann", ["msg_r1"], entry.weight) != {}
    with pytest.raises(StoredTooLargeError):
        await response_records.items("acme", "ann", ["msg_r1"], 100)


async def test_a_response_from_before_there_were_weights_is_weighed_when_it_is_needed(
    response_records: ResponseRecords, database: Database
) -> None:
    response = a_response("r1")
    await response_records.keep(response)
    both = pack_json({"items": list(response.items), "content": dict(response.content)})
    older = update(responses).where(responses.c.tenant == "acme")
    older = older.values(packed=both.stored, weight=None, asked=None, asked_weight=None)
    await database.write(lambda connection: connection.execute(older))
    assert await response_records.response("acme", "ann", "r1") == response
    (entry,) = await response_records.line("acme", "ann", "r1")
    assert entry.weight == both.weight
    assert await response_records.in_line("acme", "ann", ["r1"], both.weight) == [response]
    with pytest.raises(StoredTooLargeError):
        await response_records.in_line("acme", "ann", ["r1"], both.weight - 1)


async def test_a_damaged_response_is_said_to_be_damaged(
    response_records: ResponseRecords, damage: Damage
) -> None:
    await response_records.keep(a_response())
    await damage("responses")
    # Nothing of it is read.
    assert await response_records.is_found("acme", "ann", "resp_1")
    with pytest.raises(StorageCorruptionError):
        await response_records.response("acme", "ann", "resp_1")


async def test_without_the_key_nothing_of_a_response_can_be_read(database: Database) -> None:
    sealed = SqlResponses(database, Vault(["a key, of more than thirty-two characters"]))
    await sealed.keep(a_response())
    assert await sealed.in_line("acme", "ann", ["resp_1"]) == [a_response()]
    with pytest.raises(StorageKeyError):
        await SqlResponses(database).response("acme", "ann", "resp_1")


async def test_a_response_in_the_clear_is_sealed_with_the_rest_of_the_registry(database: Database) -> None:
    await SqlResponses(database).keep(a_response())
    vault = Vault(["a key, of more than thirty-two characters"])
    assert "response" in [noun async for noun in Reseal(database, vault)()]
    assert "response" not in [noun async for noun in Reseal(database, vault)()]
    assert await SqlResponses(database, vault).in_line("acme", "ann", ["resp_1"]) == [a_response()]
    with pytest.raises(StorageKeyError):
        await SqlResponses(database).response("acme", "ann", "resp_1")
