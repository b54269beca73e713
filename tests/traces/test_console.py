"""Audit records and error pages lead to the traces in which they came about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.adapters.vllm.fake_vllm import MODEL, fake_vllm
from tests.traces.gateway import caller, http, traced_gateway
from tests.traces.sink import Sink
from tests.transport.console.reading import TRACES, Document, sound
from tests.transport.llm.gateway import settings_for
from tests.transport.mcp.gateway import sdk_agent

pytestmark = pytest.mark.slow

UI = f"{TRACES}{{trace_id}}"


def traces(page: Document) -> list[str]:
    return [each.attributes["href"] for each in page.all("a") if each.text.strip() == "Trace"]


async def test_a_record_names_the_trace_of_its_request_and_the_page_leads_there(
    tmp_path: Path, collector: Sink, era: str
) -> None:
    whose, other = caller(), caller(sampled=False)
    async with (
        traced_gateway(tmp_path, collector, trace_url=UI) as url,
        sdk_agent(url, era) as agent,
        http(url) as browser,
    ):
        for each, name in ((whose, "kept"), (other, "not-kept")):
            with each.calling():
                await agent.call("session_create", {"session_id": name})
        page = sound(Document((await browser.get("/console/audit?event=session_create")).text))
    assert traces(page) == [f"{TRACES}{whose.trace}"]
    assert f"trace_id: {whose.trace}" in page.text
    assert other.trace not in page.source
    assert collector.of(whose.trace)


async def test_a_turn_leads_to_the_trace_of_the_request_that_asked(tmp_path: Path, collector: Sink) -> None:
    whose, other = caller(), caller(sampled=False)
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    async with fake_vllm() as vllm:
        engine = settings_for(vllm.url)
        gateway = traced_gateway(tmp_path, collector, trace_url=UI, engine=engine)
        async with gateway as url, http(url) as browser:
            pages = []
            for each, session in ((whose, "kept"), (other, "not-kept")):
                headers = {"traceparent": each.parent, "cwm-session-id": session}
                answer = await browser.post("/v1/chat/completions", json=asked, headers=headers)
                assert answer.status_code == 200, answer.text
                tree = Document((await browser.get(f"/console/conversations/{session}")).text)
                (turn,) = {path for path in tree.links.values() if re.fullmatch(r"/console/turns/\w+", path)}
                pages.append(sound(Document((await browser.get(turn)).text)))
    assert [traces(page) for page in pages] == [[f"{TRACES}{whose.trace}"], []]


async def test_an_error_page_leads_to_the_trace_of_its_own_request(tmp_path: Path, collector: Sink) -> None:
    whose = caller()
    async with traced_gateway(tmp_path, collector, trace_url=UI) as url, http(url) as browser:
        answer = await browser.get("/console/windows/nil", headers={"traceparent": whose.parent})
    assert answer.status_code == 404
    assert traces(sound(Document(answer.text))) == [f"{TRACES}{whose.trace}"]


async def test_without_traces_nothing_is_recorded_and_nothing_leads_anywhere(tmp_path: Path) -> None:
    async with (
        traced_gateway(tmp_path, None, trace_url=UI) as url,
        sdk_agent(url, "2026-07-28") as agent,
        http(url) as browser,
    ):
        await agent.call("session_create", {"session_id": "s"})
        pages = [Document((await browser.get(f"/console/{path}")).text) for path in ("audit", "windows/nil")]
    assert [traces(page) for page in pages] == [[], []]
    assert "trace_id" not in pages[0].source
