"""What every audit log owes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from cwm.domain.audit import AuditEvent, Severity
from cwm.ports.audit import AuditLog
from tests.contracts.nouns import NOW


def an_event(event: str, tenant: str = "acme", **given: Any) -> AuditEvent:
    return replace(AuditEvent(NOW, tenant, "ann", event, "success"), **given)


async def test_an_event_comes_back_as_it_was_recorded(audit_log: AuditLog) -> None:
    event = an_event(
        "window.freeze",
        outcome="CWM-4001",
        session_id="s1",
        window_name="w1",
        severity=Severity.WARNING,
        details={"blocks": 3, "wait": True, "why": None, "names": ["é"]},
    )
    await audit_log.record(event)
    assert await audit_log.events("acme", 10) == [event]


async def test_events_come_newest_first_up_to_the_limit(audit_log: AuditLog) -> None:
    for second in (2, 0, 3, 1):
        await audit_log.record(an_event(f"e{second}", timestamp=NOW + timedelta(seconds=second)))
    assert [event.event for event in await audit_log.events("acme", 3)] == ["e3", "e2", "e1"]


async def test_events_of_one_instant_come_last_written_first(audit_log: AuditLog) -> None:
    for number in range(5):
        await audit_log.record(an_event(f"e{number}"))
    assert [event.event for event in await audit_log.events("acme", 5)] == ["e4", "e3", "e2", "e1", "e0"]


async def test_a_tenant_sees_its_own_events_only(audit_log: AuditLog) -> None:
    await audit_log.record(an_event("theirs", tenant="bolt"))
    await audit_log.record(an_event("mine"))
    assert [event.event for event in await audit_log.events("acme", 10)] == ["mine"]
    assert await audit_log.events("nobody", 10) == []
