"""Whom CWM turned away is written down, whatever else is tried at the same time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.audit import AuditEvent
from cwm.domain.errors import InsufficientScopeError, UnauthenticatedError
from cwm.domain.principal import Principal
from cwm.services.access.refusals import Refusals
from tests.origins import coming_from

FORGED = UnauthenticatedError("The access token is forged.", why="forged")
LACKS = InsufficientScopeError("This needs the scope admin.", reason="insufficient_scope", required=["admin"])


class ManualClock:
    """Shows what the test sets."""

    seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def refusals(audit_log: SqlAuditLog, clock: ManualClock) -> Refusals:
    return Refusals(audit_log, clock, PrometheusMeter(), "default")


async def written(audit_log: SqlAuditLog, tenant: str) -> list[AuditEvent]:
    return list(await audit_log.events(tenant, 500))


async def test_a_flood_of_strangers_hides_no_refusal_of_a_tenant(
    refusals: Refusals, audit_log: SqlAuditLog
) -> None:
    for host in range(100):
        with coming_from(f"192.0.2.{host}"):
            await refusals.note(FORGED, "/mcp")
    assert len(await written(audit_log, "default")) == 60
    await refusals.note(LACKS, "/metrics", Principal("acme", "ann"))
    assert [event.subject for event in await written(audit_log, "acme")] == ["ann"]


async def test_a_flood_of_one_tenant_hides_nothing_of_another_nor_of_its_other_users(
    refusals: Refusals, audit_log: SqlAuditLog
) -> None:
    for _ in range(100):
        await refusals.note(LACKS, "/metrics", Principal("evil", "eve"))
    for who in (Principal("evil", "ann"), Principal("acme", "bob")):
        await refusals.note(LACKS, "/metrics", who)
    subjects = [event.subject for event in await written(audit_log, "evil")]
    assert (subjects.count("eve"), subjects.count("ann")) == (20, 1)
    assert len(await written(audit_log, "acme")) == 1


async def test_a_flood_from_one_address_leaves_room_for_another_and_says_later_how_much_was_left_out(
    refusals: Refusals, audit_log: SqlAuditLog, clock: ManualClock
) -> None:
    with coming_from("192.0.2.1"):
        for _ in range(50):
            await refusals.note(FORGED, "/mcp")
    with coming_from("192.0.2.2"):
        await refusals.note(FORGED, "/mcp")
    (latest, *_) = await written(audit_log, "default")
    assert (latest.origin.address, latest.details["left_out"]) == ("192.0.2.2", 30)
    clock.seconds = 60.0
    with coming_from("192.0.2.1"):
        await refusals.note(FORGED, "/mcp")
    (latest, *_) = await written(audit_log, "default")
    assert "left_out" not in latest.details
    assert len(await written(audit_log, "default")) == 22
