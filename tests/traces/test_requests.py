"""What a request leaves in a trace: whose it is, what was done for it, and nothing that it said."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp import MCPError

from cwm.settings import Database, Engine, Shared
from tests.traces.gateway import caller, http, traced_gateway
from tests.traces.sink import Sink
from tests.transport.mcp.gateway import fastmcp_agent, nobody_listens, sdk_agent
from tests.transport.mcp.wire import wired

pytestmark = pytest.mark.slow

SECRET = "Xk29-never-to-be-seen"


async def test_a_call_of_a_tool_is_one_trace_from_the_client_down_to_the_database(
    tmp_path: Path, collector: Sink, era: str
) -> None:
    whose = caller()
    async with traced_gateway(tmp_path, collector) as url, sdk_agent(url, era) as agent:
        with whose.calling():
            await agent.call("context_set", {"key": "k", "value": {"n": 1}})

    call = collector.one("tools/call context_set")
    assert (call.kind, call.trace, call.parent, call.failed) == ("server", whose.trace, whose.span, False)
    version = call.attributes["mcp.protocol.version"]
    assert version == "2026-07-28" if era == "2026-07-28" else version < "2026"
    assert (
        call.attributes.items()
        >= {
            "mcp.method.name": "tools/call",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "context_set",
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "cwm.tenant": "acme",
        }.items()
    )
    (verb,) = [span for span in collector.below(call) if span.name == "context_set"]
    assert verb.kind == "internal"
    transactions = [span for span in collector.below(verb) if span.name.startswith("write ")]
    assert transactions
    assert {span.kind for span in transactions} == {"client"}
    assert all(span.attributes["db.system.name"] == "sqlite" for span in transactions)
    assert collector.one("tools/call context_set").resource["service.name"] == "cwm"
    assert {span.trace for span in collector.of(whose.trace)} == {whose.trace}
    assert [name for name in collector.names() if name == "tools/call context_set"] == [call.name]


async def test_without_meta_the_http_request_says_whose_it_is(tmp_path: Path, collector: Sink) -> None:
    whose = caller()
    async with traced_gateway(tmp_path, collector) as url, wired(url) as wire:
        session = await wire.session(traceparent=whose.parent)
        (await wire.ask(session, "tools/list")).raise_for_status()
    assert collector.one("initialize").parent == whose.span
    assert collector.one("tools/list").parent == ""


async def test_meta_comes_before_the_http_request_which_is_linked(tmp_path: Path, collector: Sink) -> None:
    sender, proxy = caller(), caller()
    body = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": "window_list", "arguments": {}, "_meta": {"traceparent": sender.parent}},
    }
    async with traced_gateway(tmp_path, collector) as url, wired(url) as wire:
        session = await wire.session()
        await wire.post(body, mcp_session_id=session, traceparent=proxy.parent)
    call = collector.one("tools/call window_list")
    assert (call.trace, call.parent, call.links) == (sender.trace, sender.span, [proxy.span])
    assert call.attributes["jsonrpc.request.id"] == "7"


@pytest.mark.parametrize(
    "parent", ["", "00", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "ff-" + "a" * 5000, 3, None, ["00"]]
)
async def test_what_is_no_parent_begins_a_trace(tmp_path: Path, collector: Sink, parent: object) -> None:
    params = {"name": "window_list", "arguments": {}, "_meta": {"traceparent": parent}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with traced_gateway(tmp_path, collector) as url, wired(url) as wire:
        (await wire.post(body, mcp_session_id=await wire.session())).raise_for_status()
    assert collector.one("tools/call window_list").parent == ""


async def test_what_fails_carries_its_code(tmp_path: Path, collector: Sink, era: str) -> None:
    async with traced_gateway(tmp_path, collector) as url, fastmcp_agent(url, era) as agent:
        refused = await agent.call("result_read", {"handle": "r_" + "0" * 22})
        wrong = await agent.call("window_status", {"session_id": "s", "window_name": "w"})
        assert {refused.error["code"], wrong.error["code"]} == {"CWM-2005", "CWM-1003"}
        await agent.call("session_create", {})
    read = collector.one("tools/call result_read")
    assert (read.failed, read.error) == (True, "CWM-2005")
    status = collector.one("tools/call window_status")
    assert (status.failed, status.error) == (True, "CWM-1003")
    created = collector.one("tools/call session_create")
    (verb,) = [span for span in collector.below(created) if span.name == "session_create"]
    assert (created.error, verb.error) == ("CWM-5001", "CWM-5001")
    asked = [
        span for span in collector.of(created.trace) if span.attributes.get("service.peer.name") == "vllm"
    ]
    assert asked
    assert {(span.kind, span.failed, span.error) for span in asked} == {("client", True, "CWM-5001")}


async def test_a_turn_of_an_openai_client_fails_by_code_all_the_way_down_to_the_engine(
    tmp_path: Path, collector: Sink
) -> None:
    whose = caller()
    async with traced_gateway(tmp_path, collector) as url, http(url) as client:
        answer = await client.get("/v1/models", headers={"traceparent": whose.parent})
        assert answer.status_code == 503
        refused = await client.post("/v1/chat/completions", content=b"{")
        assert refused.status_code == 400
        await client.get("/healthz")
        await client.get(f"/v1/{SECRET}?key={SECRET}")
        await client.get(f"/{SECRET}?key={SECRET}")
    served = next(span for span in collector.of(whose.trace) if span.kind == "server")
    assert served.name == "GET /v1/models"
    assert (served.kind, served.trace, served.parent) == ("server", whose.trace, whose.span)
    assert (served.failed, served.error) == (True, "CWM-5001")
    assert served.attributes["http.response.status_code"] == 503
    assert served.attributes["http.route"] == "/v1/models"
    (verb,) = collector.below(served)
    (asked,) = collector.below(verb)
    assert (verb.name, verb.kind, verb.error) == ("pass_through", "internal", "CWM-5001")
    assert (asked.name, asked.kind, asked.error) == ("GET /v1/models", "client", "CWM-5001")
    turn = collector.one("POST /v1/chat/completions")
    assert (turn.failed, turn.error) == (False, "CWM-1003")
    assert not [name for name in collector.names() if "healthz" in name]
    assert SECRET.encode() not in b"".join(collector.raw)
    assert len([span for span in collector.spans if span.kind == "server"]) == 4


async def test_a_request_that_is_refused_before_its_message_is_read_has_a_span_of_its_own(
    tmp_path: Path, collector: Sink
) -> None:
    whose = caller()
    async with traced_gateway(tmp_path, collector) as url, wired(url) as wire:
        gone = await wire.post({}, mcp_session_id="nobody's", traceparent=whose.parent)
        assert gone.status_code == 404
    (refused,) = [span for span in collector.spans if span.kind == "server"]
    assert (refused.name, refused.trace, refused.parent) == ("POST /mcp", whose.trace, whose.span)
    assert refused.attributes["http.response.status_code"] == 404
    assert not refused.failed


async def test_commands_of_the_shared_store_are_told_by_name(
    tmp_path: Path, collector: Sink, redis_url: str, era: str
) -> None:
    shared = Shared(shared_store_url=redis_url)
    async with (
        traced_gateway(tmp_path, collector, shared=shared) as url,
        fastmcp_agent(url, era) as agent,
    ):
        await agent.call("context_set", {"key": "k", "value": SECRET, "scope": "tenant"})
        found = await agent.call("context_get", {"key": "k", "scope": "tenant"})
        assert found.value["value"] == SECRET
    verb = next(
        s for s in collector.below(collector.one("tools/call context_set")) if s.name == "context_set"
    )
    commands = collector.below(verb)
    assert {span.attributes.get("db.system.name") for span in commands} == {"redis"}
    assert "EVALSHA" in {span.name for span in commands}
    assert SECRET.encode() not in b"".join(collector.raw)


async def test_transactions_on_postgres_say_so(tmp_path: Path, collector: Sink, postgres_url: str) -> None:
    database = Database(database_url=postgres_url)
    async with (
        traced_gateway(tmp_path, collector, database=database) as url,
        sdk_agent(url, "2026-07-28") as agent,
    ):
        await agent.call("window_list", {})
    read = next(span for span in collector.below(collector.one("tools/call window_list")))
    assert read.attributes["db.system.name"] == "postgresql"
    assert read.attributes["db.operation.name"] == "read"


async def test_nothing_that_was_said_or_is_secret_is_in_any_span(
    tmp_path: Path, collector: Sink, era: str
) -> None:
    with nobody_listens() as away:
        engine = Engine(vllm_url=away, lmcache_url=away, coordinator_url=away, vllm_api_key=SECRET)
        async with (
            traced_gateway(
                tmp_path, collector, engine=engine, otlp_headers=f"authorization=Bearer {SECRET}"
            ) as url,
            fastmcp_agent(url, era) as agent,
            http(url) as client,
        ):
            await agent.call("context_set", {"key": SECRET, "value": [SECRET], "scope": "tenant"})
            await agent.call("context_get", {"key": SECRET, "scope": "tenant"})
            await agent.call("session_generate", {"session_id": "s", "text": SECRET})
            await agent.call("window_delete", {"window_name": f"{SECRET} and more"})
            await agent.call("result_query", {"handle": "r_" + "0" * 22, "search": SECRET})
            with pytest.raises(MCPError):
                await agent.client.read_resource_mcp(f"cwm://windows/{SECRET}")
            await client.post(
                f"/v1/chat/completions?key={SECRET}",
                json={"model": "m", "messages": [{"role": "user", "content": SECRET}]},
                headers={"authorization": f"Bearer {SECRET}", "cookie": SECRET, "user-agent": SECRET},
            )
    assert len(collector.names()) > 10
    assert SECRET.encode() not in b"".join(collector.raw)
    assert collector.headers[0]["authorization"] == f"Bearer {SECRET}"
