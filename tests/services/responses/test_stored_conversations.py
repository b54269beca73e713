"""One response at a time is added to a conversation, whichever gateway it comes by, and none that has died is waited for."""

from __future__ import annotations

import pytest

from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.leases import SqlLeases
from cwm.adapters.sql.turns.conversations import SqlConversations
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.errors import ConversationLockedError
from cwm.services.audit.journal import Journal
from cwm.services.replicas import Replicas
from cwm.services.responses.conversations import StoredConversations
from tests.services.replicas_of import ANN, HandClock


def conversations_of(database: Database, name: str) -> StoredConversations:
    clock = HandClock()
    replicas = Replicas(SqlLeases(database), name, lambda _: None)
    audit = SqlAuditLog(database, ChainKeys([b"a secret"]))
    journal = Journal(audit, clock, PrometheusMeter(), InProcessChanges())
    return StoredConversations(SqlConversations(database), clock, replicas, journal, lambda _: True)


async def test_a_gateway_waits_for_another_that_lives_and_not_for_one_that_has_died(sqlite: Database) -> None:
    one, two = (conversations_of(sqlite, name) for name in ("one", "two"))
    await one.replicas.beat()
    conversation = await one.create(ANN, {}, [])
    await one.hold(ANN, conversation.id, "resp_1", ())
    with pytest.raises(ConversationLockedError):
        await two.hold(ANN, conversation.id, "resp_2", ())
    await one.replicas.leave()
    await two.hold(ANN, conversation.id, "resp_2", ())
    await one.let_go(ANN, conversation.id, "resp_1")
    await two.replicas.beat()
    with pytest.raises(ConversationLockedError):
        await one.hold(ANN, conversation.id, "resp_3", ())
    await two.let_go(ANN, conversation.id, "resp_2")
    await one.hold(ANN, conversation.id, "resp_3", ())


async def test_a_gateway_does_not_wait_for_what_it_could_not_let_go(sqlite: Database) -> None:
    gateway = conversations_of(sqlite, "one")
    conversation = await gateway.create(ANN, {}, [])
    which = (ANN.tenant, ANN.subject, conversation.id)
    assert await gateway.records.hold(*which, "one resp_1") is None
    await gateway.hold(ANN, conversation.id, "resp_2", ())
    assert gateway.holds("resp_2")
