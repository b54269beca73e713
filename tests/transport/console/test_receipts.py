"""The thaws of a window, how it is gone on with, and windows of conversations that are gone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cwm.domain.access import EVERY, AccessScope
from cwm.domain.audit import AuditEvent
from cwm.domain.principal import Principal
from tests.transport.console.conftest import a_console
from tests.transport.console.reading import TRACES, Console, Document, sound
from tests.transport.console.scenes import a_working_day

pytestmark = pytest.mark.slow

EVERYTHING = Principal("default", "local", EVERY)
RECEIPT = {
    "verification": "exact",
    "tokens_restored": 4096,
    "tokens_recomputed": 104,
    "tokens_by_tier": {"redis": 4000, "cpu": 96},
    "restored_ms": 812,
}


async def thawed(
    console: Console, window: str, subject: str = "local", outcome: str = "success", **more: Any
) -> None:
    at, details = datetime.now(UTC) + timedelta(hours=1), {**RECEIPT, **more}
    event = AuditEvent(at, "default", subject, "window_thaw", outcome, "again", window, details=details)
    await console.parts.base.audit.record(event)


async def test_a_window_shows_the_receipts_of_its_thaws(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    assert "No thaw that you may see" in (await console.page("/windows/login-fixed")).text
    await thawed(console, "login-fixed")
    await thawed(console, "login-fixed", outcome="CWM-5001")
    await thawed(console, "login-race-found")
    page = await console.page("/windows/login-fixed")
    (receipt,) = page.one("ul", class_="receipts").text.split("into ")[1:]
    said = " ".join(receipt.split())
    assert "4,096 tokens restored (4,000 from redis, 96 from cpu) 104 computed again" in said
    assert "verdict: exact took 812 ms by local" in said


async def test_a_receipt_says_what_was_compared_with_what(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    proof: dict[str, Any] = {
        "compared_with": "canary_and_control",
        "canary_origin": "inherited",
        "places": 8,
        "deviation": 1.25,
    }
    for verdict, kind in (
        ("mismatch", "bad"),
        ("undecided", "warn"),
        ("canary_stale", "warn"),
        ("within_noise", "good"),
    ):
        await thawed(console, "login-fixed", **proof, verification=verdict)
        page = await console.page("/windows/login-fixed")
        receipts = page.one("ul", class_="receipts")
        said = " ".join(receipts.text.split())
        compared = "8 places compared with the canary and the context computed afresh (inherited), 1.25 nats apart at most"
        words = verdict.replace("_", " ")
        assert f"verdict: {words} {compared}" in said
        (state,) = [each for each in page.all("span", class_="state") if each.text == f"verdict: {words}"]
        assert state.attributes["class"].split() == ["state", kind]


async def test_a_receipt_of_an_earlier_version_keeps_its_word(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    await thawed(console, "login-fixed", verification="within_tolerance")
    page = await console.page("/windows/login-fixed")
    assert "verdict: within tolerance took 812 ms" in " ".join(page.one("ul", class_="receipts").text.split())


async def test_where_a_tracing_ui_is_configured_receipts_and_audit_rows_lead_to_their_traces(
    tmp_path: Path, sqlite_template: Path
) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    for trace_url, where in ((f"{TRACES}{{trace_id}}?q=<\"&'", f"{TRACES}{trace_id}?q=<\"&'"), (None, None)):
        async with a_console(tmp_path, sqlite_template, trace_url=trace_url) as console:
            await a_working_day(console.parts.base.registry)
            await thawed(console, "login-fixed", trace_id=trace_id)
            await thawed(console, "login-fixed", trace_id="'><script>alert(1)</script>")
            for path in ("/windows/login-fixed", "/audit"):
                page = await console.page(path)
                links = [each for each in page.all("a") if each.text.strip() == "Trace"]
                assert [each.attributes["href"] for each in links] == ([] if where is None else [where])
                assert "<script>alert" not in page.source


async def test_without_admin_one_sees_ones_own_thaws(console: Console) -> None:
    await thawed(console, "w", "ann")
    await thawed(console, "w", "bob")
    read, since = console.parts.services.read_audit, datetime.now(UTC) - timedelta(hours=1)
    ann = await read.thaws(Principal("default", "ann"), "w", since)
    assert [each.event.subject for each in ann] == ["ann"]
    everybody = await read.thaws(Principal("default", "root", frozenset({AccessScope.ADMIN})), "w", since)
    assert [each.event.subject for each in everybody] == ["bob", "ann"]


async def test_the_way_of_the_conversations_own_client_comes_first(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    page = await console.page("/windows/login-fixed")
    clients = [" ".join(each.text.split()) for each in page.all("p", class_="way")]
    assert clients[0] == "Claude Code (this conversation's)"
    assert set(clients) >= {"Codex", "opencode", "Qwen Code", "Continue", "OpenAI SDK", "Anthropic SDK"}
    assert "cwm windows thaw login-fixed --as fix-flaky-login-test" in page.text


async def test_a_window_of_a_deleted_conversation_leads_nowhere_that_is_not_there(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    registry = console.parts.base.registry
    await registry.remove_session("default", "fix-flaky-login-test", datetime.now(UTC))
    page = await console.page("/windows/login-fixed")
    assert "fix-flaky-login-test, which was deleted" in page.text
    for address in page.links.values():
        if address.startswith("/console") and "/export" not in address:
            answer = await console.http.get(address)
            assert answer.status_code == 200, address


async def test_the_doctor_examines_for_its_own_form_and_says_what_to_do(console: Console) -> None:
    page = await console.page("/doctor")
    assert "It takes some seconds" in page.text
    form = page.one("form", class_="confirm").attributes
    token = page.one("input", name_="form_token").attributes["value"]
    assert (form["method"], form["action"]) == ("post", "/console/doctor")
    own = {"origin": "http://127.0.0.1:8700"}
    for fields, headers in (
        ({"form_token": ""}, own),
        ({"form_token": "0" * 64}, own),
        ({"form_token": token}, {"origin": "https://evil.example"}),
        ({"form_token": token}, {}),
    ):
        refused = await console.http.post("/console/doctor", data=fields, headers=headers)
        assert (refused.status_code, "CWM-9002" in refused.text) == (403, True)
    await console.page("/doctor?examine=1")
    assert console.parts.services.examine.last(EVERYTHING) is None
    answer = await console.http.post("/console/doctor", data={"form_token": token}, headers=own)
    assert answer.status_code == 200
    examined = sound(Document(answer.text))
    assert "Examine again" in (await console.page("/doctor")).text
    findings = [" ".join(each.text.split()) for each in examined.all("li", class_="item")]
    assert findings[0].startswith("fault Model engine (vLLM)")
    assert "What to do: Start vLLM, or set CWM_VLLM_URL" in findings[0]
    assert any(each.startswith("ok Registry reachable, schema") for each in findings)
