"""All of one person's data, and nobody else's: exported, and deleted, also after an interruption."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Update, update

from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.adapters.sql.audit.trail import SqlAuditTrail
from cwm.adapters.sql.context.results import SqlResultRecords
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables.responses import conversation_items, responses
from cwm.adapters.sql.tables.turns import turn_contents
from cwm.adapters.sql.turns.conversations import SqlConversations
from cwm.adapters.sql.turns.responses import SqlResponses
from cwm.adapters.sql.upstream_tasks import SqlUpstreamTasks
from cwm.domain.access import AccessScope
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.errors import EngineConnectionError
from cwm.domain.principal import Principal
from cwm.domain.response import StoredConversation, StoredResponse
from cwm.domain.turn import TurnQuery, TurnTag
from cwm.domain.upstream_tasks import UpstreamTask
from cwm.services.access.machine_keys import MachineKeys
from cwm.services.context.requests import Setting
from cwm.services.turns.sending.generate import TurnInput
from cwm.services.upkeep.person import Person
from tests.services import kept
from tests.services.context_of import TENANT, Replica, replica
from tests.services.replicas_of import ANN, HandClock
from tests.services.windows_of import TEXT, Gateway, gateway

BOB = Principal("acme", "bob")


@dataclass(frozen=True, slots=True)
class House:
    """What a gateway and its shared store hold of Ann and of Bob."""

    cwm: Gateway
    shared: Replica
    desk: kept.Desk
    person: Person

    async def exported(self, subject: str = "ann") -> list[dict[str, Any]]:
        return [record async for record in self.person.export("acme", subject)]

    async def kinds(self, subject: str = "ann") -> dict[str, int]:
        """How many records of each kind are exported, without those of the audit log."""
        kinds = [record["kind"] for record in await self.exported(subject)]
        return {kind: kinds.count(kind) for kind in kinds if kind != "audit"}


@pytest.fixture
async def house(sqlite: Database, sqlite_url: str) -> AsyncIterator[House]:
    cwm, clock = gateway(sqlite), HandClock()
    async with replica(sqlite_url, sqlite_url, clock=clock) as shared:
        desk = kept.desk(SqlResultRecords(sqlite), shared.contents, clock)
        house = House(
            cwm,
            shared,
            desk,
            Person(
                registry=cwm.registry,
                delete_window=cwm.delete,
                end_session=cwm.end_session,
                keys=SqlApiKeys(sqlite),
                results=desk.results,
                responses=SqlResponses(sqlite),
                conversations=SqlConversations(sqlite),
                tasks=SqlUpstreamTasks(sqlite),
                context=shared.context,
                trail=SqlAuditTrail(sqlite, ChainKeys([b"a secret"])),
                journal=cwm.thaw.journal,
            ),
        )
        await cwm.open_session(ANN, "s3", visibility="private")
        await cwm.window("hers", "s1", visibility="private")
        await cwm.session("s2", "A session of hers that goes on.")
        await cwm.freeze(BOB, "s2", "of-hers", keep_session=True)
        await cwm.open_session(BOB, "his")
        await cwm.generate(BOB, "his", said(TEXT))
        await cwm.says("his", "Ann asks in Bob's session.")
        await cwm.freeze(BOB, "his", "his", keep_session=True)
        for principal in (ANN, BOB):
            await shared.context.set(principal, TENANT, Setting(f"of/{principal.subject}", principal.subject))
            await desk.keep("A result.", principal=principal)
        await shared.context.set(ANN, TENANT, Setting("fixed", "for ever", immutable=True))
        for author, session_id in (("ann", "his"), ("bob", "s2")):
            turn = await cwm.registry.current_turn("acme", session_id)
            assert turn is not None
            tag = TurnTag("acme", f"of-{author}", session_id, turn.id, author, cwm.clock.now())
            assert await cwm.registry.tag(tag) == tag
        yield house
        await cwm.settle()


def executed(statement: Update, connection: Connection) -> None:
    connection.execute(statement)


def said(text: str) -> TurnInput:
    return TurnInput(text=text, max_tokens=4)


async def test_everything_of_hers_is_exported_and_nothing_of_his(house: House) -> None:
    records = await house.exported()
    assert await house.kinds() == {"session": 3, "turn": 3, "window": 2, "tag": 1, "result": 1, "context": 2}
    turns = [record for record in records if record["kind"] == "turn"]
    assert [turn["session_id"] for turn in turns] == ["s2", "s1", "his"]
    assert turns[1]["messages"][0] == {"role": "prompt", "content": TEXT}
    assert turns[1]["token_ids"] == await house.cwm.registry.session_tokens("acme", "s1")
    (result,) = [record for record in records if record["kind"] == "result"]
    assert result["parts"][0]["body"] == b"A result."
    assert {record["value"] for record in records if record["kind"] == "context"} == {b'"ann"', b'"for ever"'}
    assert {record["subject"] for record in records if record["kind"] == "audit"} == {"ann"}
    assert ("person.export", "success") in await house.cwm.events()


async def test_her_responses_are_exported_and_go_with_her_sessions(house: House, sqlite: Database) -> None:
    records = SqlResponses(sqlite)
    turn = await house.cwm.registry.current_turn("acme", "s1")
    assert turn is not None
    at = house.cwm.clock.now()
    response = StoredResponse("acme", "resp_1", "ann", "s1", turn.id, at, [{"role": "user"}], {"output": []})
    assert await records.keep(response)
    exported = [record for record in await house.exported() if record["kind"] == "response"]
    assert [(record["id"], record["items"]) for record in exported] == [("resp_1", [{"role": "user"}])]
    await house.person.delete("acme", "ann")
    assert await records.ids_of_owner("acme", "ann") == []


async def test_what_is_damaged_is_named_and_the_rest_is_exported(house: House, sqlite: Database) -> None:
    before = await house.kinds()
    turn = await house.cwm.registry.current_turn("acme", "s1")
    assert turn is not None
    at, conversations = house.cwm.clock.now(), SqlConversations(sqlite)
    for name in ("resp_1", "resp_2"):
        kept_response = StoredResponse("acme", name, "ann", "s1", turn.id, at, [{"role": "user"}], {})
        assert await SqlResponses(sqlite).keep(kept_response)
    await conversations.add(StoredConversation("acme", "conv_1", "ann", at, at, {}), [{"id": "msg_1"}])
    damaged = [
        update(turn_contents).where(turn_contents.c.session_id == "s1").values(packed=b"?"),
        update(responses).where(responses.c.id == "resp_1").values(packed=b"?"),
        update(conversation_items).values(packed=b"?"),
    ]
    for statement in damaged:
        await sqlite.write(partial(executed, statement))
    records = await house.exported()
    unread = {(each["kind"], each["id"]): each["error"]["code"] for each in records if "error" in each}
    assert unread == {
        ("turn", turn.id): "CWM-4004",
        ("response", "resp_1"): "CWM-4004",
        ("conversation", "conv_1"): "CWM-4004",
    }
    assert [each["items"] for each in records if each.get("id") == "resp_2"] == [[{"role": "user"}]]
    assert await house.kinds() == {**before, "response": 2, "conversation": 1}
    (record,) = [each for each in records if each.get("id") == turn.id]
    assert record["token_ids"] == await house.cwm.registry.session_tokens("acme", "s1")


async def test_her_conversations_are_exported_and_deleted(house: House, sqlite: Database) -> None:
    records, at = SqlConversations(sqlite), house.cwm.clock.now()
    for owner, item in (("ann", {"id": "msg_1"}), ("bob", {"id": "msg_2"})):
        await records.add(StoredConversation("acme", f"conv_{owner}", owner, at, at, {}), [item])
    exported = [record for record in await house.exported() if record["kind"] == "conversation"]
    assert [(record["id"], record["items"]) for record in exported] == [("conv_ann", [{"id": "msg_1"}])]
    assert (await house.person.delete("acme", "ann"))["conversations"] == 1
    assert await records.of_owner("acme", "ann") == []
    assert await records.of_owner("acme", "bob") != []


async def test_her_tasks_of_upstreams_are_exported_without_the_session_and_deleted(house: House) -> None:
    at, later = house.cwm.clock.now(), house.cwm.clock.now() + timedelta(hours=1)
    for owner in ("ann", "bob"):
        task = UpstreamTask("acme", f"task_{owner}", owner, "docs", "docs_dig", at, later, later, session="s")
        assert await house.person.tasks.keep(task, 1)
    (exported,) = [record for record in await house.exported() if record["kind"] == "task"]
    assert exported["handle"] == "task_ann"
    assert "session" not in exported
    assert (await house.person.delete("acme", "ann"))["tasks"] == 1
    assert await house.person.tasks.find("acme", "task_ann") is None
    assert await house.person.tasks.find("acme", "task_bob") is not None


async def test_everything_of_hers_is_deleted_and_what_stays_is_told(house: House) -> None:
    his = await house.kinds("bob")
    assert his["window"] == 2
    assert await house.person.delete("acme", "ann") == {
        "windows": 2,
        "tags": 2,
        "sessions": 3,
        "results": 1,
        "context_keys": 1,
        "immutable": 1,
        "turns_elsewhere": 1,
    }
    assert await house.kinds() == {"turn": 1, "context": 1}
    # His tag was on a turn of hers.
    his.pop("tag")
    assert await house.kinds("bob") == his | {"window": 1}
    assert len(await house.cwm.registry.turns("acme", "his", TurnQuery())) == 2
    assert await house.cwm.at_rest()
    assert ("person.delete", "success") in await house.cwm.events()
    assert await house.person.delete("acme", "ann") == {"immutable": 1, "turns_elsewhere": 1}


async def test_what_could_not_be_deleted_is_by_the_next_call(house: House) -> None:
    house.cwm.kv_tier.away = True
    with pytest.raises(EngineConnectionError):
        await house.person.delete("acme", "ann")
    house.cwm.kv_tier.away = False
    assert (await house.person.delete("acme", "ann"))["sessions"] == 3
    assert await house.cwm.registry.session("acme", "s1", any_state=True) is None


async def test_the_keys_of_a_machine_are_listed_without_their_secrets_and_revoked(house: House) -> None:
    keys = MachineKeys(house.person.keys, house.cwm.audit, house.cwm.clock)
    key, _ = await keys.create("acme", "robot", frozenset({AccessScope.WINDOWS_READ}), timedelta(days=1))
    (exported,) = [record for record in await house.exported("key:robot") if record["kind"] == "key"]
    assert exported["key_id"] == key.key_id
    assert "digest" not in exported
    assert (await house.person.delete("acme", "key:robot"))["keys"] == 1
    (revoked,) = await house.person.keys.listed("acme")
    assert revoked.revoked_at is not None
