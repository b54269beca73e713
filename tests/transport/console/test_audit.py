"""The audit log on a page: newest events, filters, and whether the chain is whole."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, update

from cwm.adapters.sql.tables.audit import audit_log
from cwm.domain.access import EVERY, OF_AN_AGENT
from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.errors import InsufficientScopeError
from cwm.domain.principal import Principal
from cwm.ports.audit import AuditFilter
from tests.transport.console.reading import Console, Document
from tests.transport.console.test_safety import HOSTILE, MARKUP

pytestmark = pytest.mark.slow


async def record(console: Console, event: str, tenant: str = "default", **fields: Any) -> None:
    written = AuditEvent(datetime.now(UTC), tenant, "ann", event, "success")
    await console.parts.base.audit.record(replace(written, **fields))


async def a_day(console: Console) -> None:
    await record(console, "session_create", session_id="s1", details={"token_count": 0})
    await record(console, "window_freeze", session_id="s1", window_name="w1", details={"token_count": 812})
    refused = {"outcome": "CWM-2002", "severity": Severity.WARNING}
    await record(console, "window_thaw", subject="bob", window_name="w2", **refused)
    await record(console, "window_delete", tenant="acme", window_name="of-acme")


def events(page: Document) -> list[str]:
    return [" ".join(each.text.split()) for each in page.all("li", class_="item")]


async def test_an_empty_log_says_so(console: Console) -> None:
    page = await console.page("/audit")
    assert "No record was written yet." in page.text
    assert "cwm audit verify" in page.text


async def test_the_newest_event_comes_first_with_who_and_how_it_ended(console: Console) -> None:
    await a_day(console)
    page = await console.page("/audit")
    newest, frozen, opened = events(page)
    assert newest.startswith("window_thaw w2 CWM-2002 by bob")
    assert frozen.startswith("window_freeze w1 s1 success by ann")
    assert "token_count: 812" in frozen
    assert opened.startswith("session_create s1 success by ann")
    assert "of-acme" not in page.text


@pytest.mark.parametrize(
    ("query", "first_words"),
    [
        ("event=window_freeze", ["window_freeze"]),
        ("outcome=CWM-2002", ["window_thaw"]),
        ("subject=ann", ["window_freeze", "session_create"]),
        ("session=s1", ["window_freeze", "session_create"]),
        ("window=w1&event=window_freeze", ["window_freeze"]),
        ("window=of-acme", []),
    ],
)
async def test_events_are_found_by_what_they_are_about(
    console: Console, query: str, first_words: list[str]
) -> None:
    await a_day(console)
    page = await console.page(f"/audit?{query}")
    assert [each.split()[0] for each in events(page)] == first_words
    if not first_words:
        assert "No record is like this." in page.text


async def test_a_long_log_comes_page_by_page_with_its_filter(console: Console) -> None:
    for number in range(105):
        await record(console, "window_freeze" if number % 2 else "session_create", session_id=f"s{number}")
    first = await console.page("/audit?event=window_freeze")
    second = await console.page(first.links["Older"].removeprefix("/console"))
    assert (len(events(first)), len(events(second))) == (50, 2)
    assert all(each.startswith("window_freeze") for each in events(second))
    assert "Older" not in second.links


async def test_the_chain_is_verified_when_one_asks_for_it(console: Console) -> None:
    await a_day(console)
    page = await console.page("/audit")
    assert "The chain is" not in page.text
    address = page.links["Verify the chain now"].removeprefix("/console")
    assert "The chain is whole: 3 records" in (await console.page(address)).text

    def damage(connection: Connection) -> None:
        changed = update(audit_log).where(audit_log.c.tenant == "default", audit_log.c.seq == 2)
        connection.execute(changed.values(subject="eve"))

    await console.parts.base.database.write(damage)
    damaged = " ".join((await console.page(address)).one("div", id="verdict").text.split())
    assert damaged == "The chain is damaged. changed: record 2"


async def test_a_chain_that_takes_long_is_left_to_the_command(console: Console) -> None:
    await a_day(console)
    local = Principal("default", "local", EVERY)
    brief = replace(console.parts.services.read_audit, most_verified=2)
    assert await brief.verified(local) is None
    assert await replace(brief, most_verified=3).verified(local) is not None


async def test_who_lacks_the_scope_admin_reads_nothing(console: Console) -> None:
    await a_day(console)
    agent, read_audit = Principal("default", "ann", OF_AN_AGENT), console.parts.services.read_audit
    with pytest.raises(InsufficientScopeError):
        await read_audit(agent, AuditFilter())
    with pytest.raises(InsufficientScopeError):
        await read_audit.verified(agent)


async def test_what_callers_wrote_is_shown_as_text(console: Console) -> None:
    await record(
        console, MARKUP, subject=HOSTILE, outcome=MARKUP, session_id=HOSTILE, window_name=MARKUP,
        details={MARKUP: HOSTILE, "more": [MARKUP], "long": "x" * 10_000},
    )  # fmt: skip
    for path in ("/audit", "/audit?event=%3Cscript%3E%22", "/audit?verify=1&subject=%22%3E%3Cb%3E"):
        page = await console.page(path)
        assert "<script>alert" not in page.source
        assert not set("\u202e\u2066\x1b\x07\u200b") & set(page.source)
        assert len(page.source) < 20_000
    assert MARKUP in (await console.page("/audit")).text


async def test_a_place_in_the_log_is_a_number(console: Console) -> None:
    assert "400 · CWM-1003" in (await console.page("/audit?before=soon", 400)).text
