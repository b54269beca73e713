"""What every audit trail owes: one chain a tenant, whoever writes, and damage that shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Connection, delete, text, update

from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.audit.trail import SqlAuditTrail
from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.rows import record_values
from cwm.adapters.sql.tables.audit import audit_anchors as anchors
from cwm.adapters.sql.tables.audit import audit_checkpoints as checkpoints
from cwm.adapters.sql.tables.audit import audit_log as table
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.audit_chain import ChainKeys, Checkpoint, Place, carried
from cwm.domain.audit_check import Damage, Verdict
from cwm.domain.errors import StorageWriteError
from cwm.domain.origin import ORIGIN, Face, Origin
from cwm.ports.audit import AuditFilter
from cwm.services.audit.sign import SignCarried, Signing
from cwm.services.audit.upkeep import AuditUpkeep
from cwm.services.audit.verify import VerifyAudit
from cwm.services.health.examine_audit import examine_audit
from cwm.services.health.findings import Findings, FindingStatus
from tests.contracts.nouns import NOW
from tests.contracts.test_audit_log import an_event
from tests.services.replicas_of import HandClock

pytestmark = pytest.mark.slow

KEYS = ChainKeys([b"a secret"])
REPLACED_ONCE = 'cwm_events_total{event="audit_chain_replaced"} 1.0'


@pytest.fixture
def trail(database: Database) -> SqlAuditTrail:
    return SqlAuditTrail(database, KEYS)


@pytest.fixture
async def other_log(database_url: str) -> AsyncIterator[SqlAuditLog]:
    """A second gateway on the same database."""
    opened = open_database(database_url)
    log = SqlAuditLog(opened, KEYS)
    yield log
    await log.settle()
    await opened.dispose()


async def verified(trail: SqlAuditTrail, *kept: Checkpoint) -> Verdict:
    return await VerifyAudit(trail, KEYS)("acme", kept)


async def filled(log: SqlAuditLog, count: int = 5) -> None:
    for number in range(count):
        await log.record(an_event(f"e{number}", timestamp=NOW + timedelta(days=number)))


def upkeep(log: SqlAuditLog, trail: SqlAuditTrail, days: float | None = None) -> AuditUpkeep:
    clock = HandClock((NOW + timedelta(days=4, hours=1)).timestamp())
    return AuditUpkeep(log, trail, KEYS, clock, None if days is None else timedelta(days=days))


async def test_records_are_numbered_and_linked_tenant_by_tenant(
    audit_log: SqlAuditLog, trail: SqlAuditTrail
) -> None:
    for tenant in ("acme", "bolt", "acme"):
        await audit_log.record(an_event("e", tenant=tenant))
    first, second = await trail.page("acme", 0, 10)
    (alone,) = await trail.page("bolt", 0, 10)
    assert (first.seq, second.seq, alone.seq) == (1, 2, 1)
    assert (first.previous, second.previous, alone.previous) == ("", first.digest, "")
    assert await trail.tenants() == ["acme", "bolt"]
    assert audit_log.ends() == {"acme": second.place, "bolt": alone.place}


async def test_a_record_says_where_from(audit_log: SqlAuditLog, trail: SqlAuditTrail) -> None:
    origin = Origin(Face.OPENAI, "192.0.2.1", "agent/1")
    token = ORIGIN.set(origin)
    await audit_log.record(an_event("of a request"))
    ORIGIN.reset(token)
    await audit_log.record(an_event("of the gateway"))
    records = await trail.page("acme", 0, 10)
    assert [record.event.origin for record in records] == [origin, Origin(Face.GATEWAY)]
    assert (await verified(trail)).whole


@pytest.mark.slow
async def test_gateways_that_write_at_once_make_one_chain(
    audit_log: SqlAuditLog, other_log: SqlAuditLog, trail: SqlAuditTrail
) -> None:
    async def some(log: SqlAuditLog, name: str) -> None:
        for number in range(15):
            await log.record(an_event(f"{name}{number}"))

    writers = [some(log, f"{name}-") for log in (audit_log, other_log) for name in ("a", "b", "c")]
    await asyncio.gather(*writers, *(audit_log.record(an_event("at once")) for _ in range(10)))
    verdict = await verified(trail)
    assert verdict.whole
    assert verdict.records == 100
    ends = (audit_log.ends().get("acme"), other_log.ends().get("acme"))
    assert verdict.end in ends


async def test_what_a_cancelled_caller_recorded_is_recorded(
    audit_log: SqlAuditLog, trail: SqlAuditTrail
) -> None:
    recording = asyncio.create_task(audit_log.record(an_event("e")))
    await asyncio.sleep(0)
    recording.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recording
    await audit_log.settle()
    assert [record.event.event for record in await trail.page("acme", 0, 10)] == ["e"]


async def test_what_is_odd_is_recorded_and_holds(audit_log: SqlAuditLog, trail: SqlAuditTrail) -> None:
    details = {"x": 1e-7, "big": 2**70, "nul": "a\x00", "half": "\ud800", "é": [None, {"n": float("inf")}]}
    await audit_log.record(an_event("e", subject="a\x00\ud800ü", details=details))
    await audit_log.record(an_event("e", timestamp=NOW.astimezone(), details={"b": 1, "a": 2}))
    assert (await verified(trail)).whole


async def test_a_changed_a_removed_and_a_cut_off_record_show(
    audit_log: SqlAuditLog, trail: SqlAuditTrail, database: Database
) -> None:
    await filled(audit_log)
    await upkeep(audit_log, trail).checkpoint()
    await database.write(
        lambda connection: connection.execute(update(table).where(table.c.seq == 2).values(subject="bob"))
    )
    await database.write(lambda connection: connection.execute(delete(table).where(table.c.seq.in_([3, 5]))))
    found = (await verified(trail)).findings
    assert [(each.damage, each.first, each.last) for each in found] == [
        (Damage.CHANGED, 2, 2),
        (Damage.REMOVED, 3, 3),
        (Damage.CUT_OFF, 5, 5),
    ]


async def test_a_running_gateway_does_not_carry_on_behind_what_was_cut_off(
    audit_log: SqlAuditLog, trail: SqlAuditTrail, database: Database
) -> None:
    await filled(audit_log)
    await database.write(lambda connection: connection.execute(delete(table).where(table.c.seq > 3)))
    await audit_log.record(an_event("next"))
    (found,) = (await verified(trail)).findings
    assert (found.damage, found.first, found.last) == (Damage.REMOVED, 4, 5)


async def test_a_checkpoint_kept_elsewhere_shows_what_the_database_does_not(
    audit_log: SqlAuditLog, other_log: SqlAuditLog, trail: SqlAuditTrail, database: Database
) -> None:
    await filled(audit_log)
    (kept,) = [Checkpoint("acme", place, NOW) for place in audit_log.ends().values()]
    await database.write(lambda connection: connection.execute(delete(table).where(table.c.seq > 3)))
    for _ in range(3):
        await other_log.record(an_event("instead"))
    assert (await verified(trail)).whole
    assert [found.damage for found in (await verified(trail, kept)).findings] == [Damage.CUT_OFF]
    assert (await verified(trail, replace(kept, tenant="bolt"))).whole


async def test_a_checkpoint_never_goes_back(audit_log: SqlAuditLog, trail: SqlAuditTrail) -> None:
    await filled(audit_log)
    keeper = upkeep(audit_log, trail)
    await keeper.checkpoint()
    kept = await trail.checkpoint("acme")
    assert kept is not None
    assert kept.place == audit_log.ends()["acme"]
    assert not await trail.keep_checkpoint(KEYS.sign(replace(kept, place=Place(2, "0" * 64))))
    assert await trail.checkpoint("acme") == kept
    assert await trail.checkpoint("bolt") is None


async def test_a_checkpoint_that_no_gateway_signed_shows(
    audit_log: SqlAuditLog, trail: SqlAuditTrail
) -> None:
    await filled(audit_log)
    await trail.keep_checkpoint(Checkpoint("acme", Place(2, "0" * 64), NOW, "0123", "forged"))
    assert [found.damage for found in (await verified(trail)).findings] == [Damage.UNSIGNED]


async def test_records_that_had_their_time_are_removed_and_the_rest_is_whole(
    audit_log: SqlAuditLog, trail: SqlAuditTrail
) -> None:
    await filled(audit_log)
    assert await upkeep(audit_log, trail).prune() == 0
    assert await upkeep(audit_log, trail, days=2).prune() == 3
    assert [record.seq for record in await trail.page("acme", 0, 10)] == [4, 5]
    await audit_log.record(an_event("next", timestamp=NOW + timedelta(days=4)))
    verdict = await verified(trail)
    assert verdict.whole
    assert (verdict.records, verdict.pruned, verdict.end.seq) == (3, 3, 6)


async def test_a_record_that_was_made_to_look_old_is_not_removed_and_goes_on_to_show(
    audit_log: SqlAuditLog, trail: SqlAuditTrail, database: Database
) -> None:
    await filled(audit_log)
    long_ago = update(table).where(table.c.seq.in_((2, 3))).values(timestamp=NOW - timedelta(days=9))
    await database.write(lambda connection: connection.execute(long_ago))
    assert await upkeep(audit_log, trail, days=4).prune() == 1
    assert [record.seq for record in await trail.page("acme", 0, 10)] == [2, 3, 4, 5]
    assert [found.damage for found in (await verified(trail)).findings] == [Damage.CHANGED] * 2


async def test_the_newest_record_stays_however_old(
    audit_log: SqlAuditLog, other_log: SqlAuditLog, trail: SqlAuditTrail
) -> None:
    await filled(audit_log)
    assert await trail.prune("acme", NOW + timedelta(days=99), 2) == 2
    assert await trail.prune("acme", NOW + timedelta(days=99), 100) == 2
    assert await trail.prune("acme", NOW + timedelta(days=99), 100) == 0
    await other_log.record(an_event("next"))
    assert [record.seq for record in await trail.page("acme", 0, 10)] == [5, 6]
    assert (await verified(trail)).whole


async def test_an_anchor_that_was_moved_is_not_signed_as_it_was_moved(
    audit_log: SqlAuditLog, trail: SqlAuditTrail, database: Database
) -> None:
    await filled(audit_log)
    moved = anchors.insert().values(
        tenant="acme", pruned_through=0, pruned_digest="", carried_through=99, key_id="", signature=""
    )
    await database.write(lambda connection: connection.execute(moved))
    assert await trail.prune("acme", NOW + timedelta(days=99), 2) == 2
    assert (await trail.anchor("acme")).carried_through == 0
    assert await trail.prune("acme", NOW + timedelta(days=99), 1) == 1
    assert (await verified(trail)).whole

    await database.write(lambda connection: connection.execute(update(anchors).values(carried_through=99)))
    assert [found.damage for found in (await verified(trail)).findings] == [Damage.UNSIGNED]
    assert await trail.prune("acme", NOW + timedelta(days=99), 2) == 0


def _replace_by_carried(connection: Connection, count: int) -> None:
    """As with the database alone: a chain of records under the key that is no secret in place of the tenant's."""
    for each in (table, anchors, checkpoints):
        connection.execute(delete(each).where(each.c.tenant == "acme"))
    place = Place()
    for number in range(count):
        record = carried(an_event("forged", timestamp=NOW + timedelta(minutes=number)), place)
        place = record.place
        connection.execute(table.insert().values(record_values(record)))
    unsigned = {"pruned_through": 0, "pruned_digest": "", "key_id": "", "signature": ""}
    connection.execute(anchors.insert().values(tenant="acme", carried_through=count, **unsigned))


@pytest.mark.parametrize("at_once", [1, 2])
async def test_a_gateway_says_that_its_chain_was_replaced_before_it_links_on_and_verify_does_not_believe_it(
    database: Database, trail: SqlAuditTrail, caplog: pytest.LogCaptureFixture, at_once: int
) -> None:
    meter = PrometheusMeter()
    log = SqlAuditLog(database, KEYS, meter)
    await filled(log)
    assert log.fault() is None
    await database.write(lambda connection: _replace_by_carried(connection, 6))
    assert [each.damage for each in (await verified(trail)).findings] == [Damage.UNSIGNED]

    await asyncio.gather(*(log.record(an_event("next")) for _ in range(at_once)))
    assert REPLACED_ONCE in meter.text()
    assert "cwm audit verify" in (log.fault() or "")
    assert "audit_chain_replaced acme" in caplog.text
    verdict = await verified(trail)
    assert [(each.damage, each.first, each.last) for each in verdict.findings] == [(Damage.UNSIGNED, 1, 6)]
    assert verdict.records == 6 + at_once

    await upkeep(log, trail, days=1).checkpoint()
    assert await upkeep(log, trail, days=1).prune() == 0
    assert not (await verified(trail)).whole
    await log.record(an_event("and on"))
    assert REPLACED_ONCE in meter.text()


async def test_a_gateway_says_that_its_last_record_is_gone_before_it_signs_a_checkpoint(
    audit_log: SqlAuditLog, trail: SqlAuditTrail, database: Database
) -> None:
    await filled(audit_log)
    await database.write(lambda connection: connection.execute(delete(table).where(table.c.seq > 3)))
    assert audit_log.fault() is None
    await upkeep(audit_log, trail).checkpoint()
    assert audit_log.fault() is not None
    assert [each.damage for each in (await verified(trail)).findings] == [Damage.CUT_OFF]


async def test_what_other_gateways_write_and_prune_is_no_fault(
    audit_log: SqlAuditLog, other_log: SqlAuditLog, trail: SqlAuditTrail
) -> None:
    await filled(audit_log, 2)
    await filled(other_log)
    await audit_log.record(an_event("behind theirs"))
    assert await trail.prune("acme", NOW + timedelta(days=99), 100) == 7
    await other_log.record(an_event("after pruning"))
    await audit_log.record(an_event("again behind theirs"))
    newer = SqlAuditLog(other_log.database, ChainKeys([b"a new secret", b"a secret"]))
    await newer.record(an_event("under a secret that the others do not have yet"))
    await audit_log.record(an_event("behind that"))
    for log in (audit_log, other_log, newer):
        await log.examine("acme")
        assert log.fault() is None
    assert (await VerifyAudit(trail, newer.keys)("acme")).whole


async def test_what_is_damaged_beyond_records_that_nobody_signed_is_not_signed(
    audit_log: SqlAuditLog, trail: SqlAuditTrail, database: Database
) -> None:
    sign = SignCarried(VerifyAudit(trail, KEYS), trail, audit_log, HandClock(NOW.timestamp()))
    await filled(audit_log)
    assert (await sign("acme"))[0] is Signing.NOTHING
    await database.write(lambda connection: _replace_by_carried(connection, 6))
    await database.write(lambda connection: connection.execute(delete(table).where(table.c.seq == 2)))
    assert (await sign("acme"))[0] is Signing.REFUSED
    assert not (await verified(trail)).whole


@pytest.mark.parametrize(
    "damage",
    [
        lambda connection: _replace_by_carried(connection, 6),
        lambda connection: connection.execute(delete(table).where(table.c.seq > 3)),
        lambda connection: connection.execute(update(table).values(subject="bob")),
        lambda connection: connection.execute(update(checkpoints).values(signature="forged")),
        lambda connection: connection.execute(
            anchors.insert().values(
                tenant="acme", pruned_through=2, pruned_digest="", carried_through=0, key_id="", signature=""
            )
        ),
    ],
)
async def test_the_doctor_sees_a_chain_whose_ends_no_gateway_signed(
    audit_log: SqlAuditLog, trail: SqlAuditTrail, database: Database, damage: Callable[[Connection], object]
) -> None:
    await filled(audit_log)
    await upkeep(audit_log, trail).checkpoint()
    whole, damaged = Findings(), Findings()
    await examine_audit(whole, trail, KEYS)
    assert [finding.status for finding in whole.made] == [FindingStatus.OK]
    await database.write(damage)
    await examine_audit(damaged, trail, KEYS)
    assert damaged.has_fault("audit")
    assert "acme" in damaged.made[0].message


async def test_records_are_found_by_time_and_kind(audit_log: SqlAuditLog, trail: SqlAuditTrail) -> None:
    await filled(audit_log)
    await audit_log.record(an_event("e1", subject="bob", outcome="CWM-2002", timestamp=NOW, session_id="s2"))

    async def seqs(wanted: AuditFilter) -> list[int]:
        in_order = [record.seq for record in await trail.page("acme", 0, 10, wanted)]
        assert in_order == [record.seq for record in await trail.newest("acme", 10, wanted)][::-1]
        return in_order

    assert await seqs(AuditFilter(event="e1")) == [2, 6]
    assert await seqs(AuditFilter(subject="bob")) == [6]
    assert await seqs(AuditFilter(outcome="CWM-2002")) == [6]
    assert await seqs(AuditFilter(session_id="s2")) == [6]
    assert await seqs(AuditFilter(window_name="nobody's")) == []
    assert await seqs(AuditFilter(before=3)) == [1, 2]
    day = timedelta(days=1)
    assert await seqs(AuditFilter(since=NOW + day, until=NOW + 3 * day)) == [2, 3]
    assert [record.seq for record in await trail.newest("acme", 2)] == [6, 5]


def _hide(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE audit_log RENAME TO hidden"))


def _show(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE hidden RENAME TO audit_log"))


async def test_a_log_that_cannot_be_written_says_so_and_goes_on_when_it_can(
    audit_log: SqlAuditLog, trail: SqlAuditTrail, database: Database
) -> None:
    await filled(audit_log, 2)
    await database.write(_hide)
    with pytest.raises(StorageWriteError):
        await audit_log.record(an_event("lost"))
    await database.write(_show)
    await audit_log.record(an_event("kept"))
    assert [record.event.event for record in await trail.page("acme", 0, 10)] == ["e0", "e1", "kept"]
    assert (await verified(trail)).whole
