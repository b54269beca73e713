"""Upstreams that are told who calls: what is away for one caller holds up neither lists nor other callers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from cwm.domain.backoff import LONGEST_SECONDS
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import EngineTimeoutError, UpstreamUnavailableError
from cwm.domain.upstream import Credentials, OfferKind
from cwm.services.agents.context_manager import state_key
from cwm.services.upstreams.link import LinkState
from cwm.services.upstreams.upstreams import CallerOf
from tests.adapters.upstream.bad_server import BadServer, bad_server, replying, result
from tests.eventually import eventually
from tests.services.replicas_of import ANN, BOB, Replica, Shared, replica
from tests.transport.mcp.upstream_hosts import hosted

pytestmark = pytest.mark.slow

OF_CALLERS: dict[str, Any] = {"credentials": Credentials.FORWARD, "connect_seconds": 2}


async def tools(one: Replica, caller: CallerOf) -> set[str]:
    return set((await one.upstreams.offering(caller, OfferKind.TOOLS)).offers)


def hang(server: BadServer) -> asyncio.Event:
    """Until the event is set it does not greet anybody."""
    go_on = asyncio.Event()

    async def greet(_: Request, message: dict[str, Any]) -> Response:
        await go_on.wait()
        return server.greeting(message)

    server.on["initialize"] = greet
    return go_on


def asked(server: BadServer) -> int:
    return server.methods().count("initialize")


async def test_one_that_hangs_is_waited_for_once_and_comes_back_by_itself() -> None:
    shared, told = Shared(), list[Change]()
    shared.changes.subscribe(told.append)
    async with bad_server() as hangs, bad_server() as well:
        go_on = hang(hangs)
        specs = [hangs.spec("slow", **OF_CALLERS), well.spec("fast", credentials=Credentials.FORWARD)]
        async with replica(shared, specs) as one:
            ann = await one.caller(None, authorization="Bearer a")
            assert await tools(one, ann) == {"fast_do"}
            assert await tools(one, ann) == {"fast_do"}
            with pytest.raises(UpstreamUnavailableError):
                await one.call(ann, "slow_do")
            assert asked(hangs) == 1
            health = {each.name: each.state for each in one.upstreams.health()}
            assert health == {"slow": LinkState.AWAY, "fast": LinkState.READY}

            shared.clock.seconds += LONGEST_SECONDS
            offering = await one.upstreams.offering(ann, OfferKind.TOOLS)
            assert (set(offering.offers), set(offering.absent)) == ({"fast_do"}, {"slow"})
            await eventually(lambda: asked(hangs) == 2)
            told.clear()
            go_on.set()
            await eventually(lambda: ChangeKind.TOOLS in {each.kind for each in told})
            assert await tools(one, ann) == {"fast_do", "slow_do"}
            assert asked(hangs) == 2
            assert {each.state for each in one.upstreams.health()} == {LinkState.READY}
        go_on.set()


async def test_what_hangs_for_one_caller_is_tried_anew_for_another_who_does_not_wait_for_it() -> None:
    shared = Shared()
    async with bad_server() as server:
        go_on = hang(server)
        async with replica(shared, [server.spec(**OF_CALLERS)]) as one:
            ann, bob = [await one.caller(None, who, f"Bearer {who.subject}") for who in (ANN, BOB)]
            assert await tools(one, ann) == set()
            assert await tools(one, bob) == set()
            await eventually(lambda: asked(server) == 2)
            # It is still being tried for him.
            go_on.set()
            assert await one.call(bob, "bad_do") == "done"
            assert asked(server) == 2


async def test_credentials_that_are_refused_say_nothing_of_the_upstream_and_others_are_tried_at_once() -> (
    None
):
    shared = Shared()
    async with bad_server() as server:

        async def greet(request: Request, message: dict[str, Any]) -> Response:
            fresh = request.headers.get("authorization") == "Bearer fresh"
            return server.greeting(message) if fresh else PlainTextResponse("", 401)

        server.on["initialize"] = greet
        async with replica(shared, [server.spec(**OF_CALLERS)]) as one:
            stale = await one.upstreams.offering(
                await one.caller(None, authorization="Bearer stale"), OfferKind.TOOLS
            )
            assert stale.absent == {"bad": "it refuses our credentials (HTTP 401)"}
            assert one.upstreams.health()[0].state is LinkState.READY
            assert await tools(one, await one.caller(None, authorization="Bearer fresh")) == {"bad_do"}


async def test_what_one_without_streams_offers_a_caller_after_a_restart_is_there_for_the_next_list() -> None:
    async def renamed(_: Request, message: dict[str, Any]) -> Response:
        return JSONResponse(result(message, {"tools": [{"name": "new", "inputSchema": {"type": "object"}}]}))

    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec(**OF_CALLERS)]) as one:
        ann = await one.caller(None, authorization="Bearer a")
        assert await tools(one, ann) == {"bad_do"}
        server.on["tools/list"] = renamed
        assert await tools(one, ann) == {"bad_do"}
        shared.clock.seconds += 6
        assert await tools(one, ann) == {"bad_new"}


async def test_one_that_is_down_is_away_until_somebody_meets_it() -> None:
    shared = Shared()
    async with bad_server() as server:
        server.on["initialize"] = replying(lambda: PlainTextResponse("", 503))
        async with replica(shared, [server.spec(**OF_CALLERS)]) as one:
            assert await tools(one, await one.caller(None, ANN, "Bearer ann")) == set()
            assert [(each.state, each.reason) for each in one.upstreams.health()] == [
                (LinkState.AWAY, "it takes no requests now (HTTP 503)")
            ]
            server.on = {}
            assert await one.call(await one.caller(None, BOB, "Bearer bob"), "bad_do") == "done"
            assert [(each.state, each.reason) for each in one.upstreams.health()] == [(LinkState.READY, None)]


@pytest.mark.parametrize("hangs", [True, False])
async def test_after_a_call_that_hung_it_is_seen_whether_the_upstream_does(*, hangs: bool) -> None:
    shared = Shared()
    async with bad_server() as server:
        spec = server.spec(credentials=Credentials.FORWARD, connect_seconds=1, call_seconds=0.2)
        async with replica(shared, [spec]) as one:
            ann = await one.caller(None, authorization="Bearer ann")
            assert await tools(one, ann) == {"bad_do"}
            server.on = dict.fromkeys(["tools/call"] + ["tools/list"] * hangs, server.holding)
            listed = server.methods().count("tools/list")
            with pytest.raises(EngineTimeoutError):
                await one.call(ann, "bad_do")
            await eventually(lambda: server.methods().count("tools/list") > listed)
            if hangs:
                await eventually(lambda: one.upstreams.health()[0].state is LinkState.AWAY)
                assert await tools(one, ann) == set()
                server.on = {}
                shared.clock.seconds += LONGEST_SECONDS
            assert await tools(one, ann) == {"bad_do"}
            assert one.upstreams.health()[0].state is LinkState.READY


@pytest.mark.parametrize("credentials", [Credentials.NONE, Credentials.FORWARD])
async def test_upstreams_that_hang_are_waited_for_together(credentials: Credentials) -> None:
    """Each greets only when all are waited for: one after the other they would be given up."""
    shared, count = Shared(), 4
    together = asyncio.Barrier(count)
    async with bad_server() as first, bad_server() as second, bad_server() as third, bad_server() as fourth:
        specs = []
        for number, server in enumerate((first, second, third, fourth)):

            async def greet(_: Request, message: dict[str, Any], of: BadServer = server) -> Response:
                await together.wait()
                return of.greeting(message)

            server.on["initialize"] = greet
            specs.append(server.spec(f"s{number}", credentials=credentials))
        async with replica(shared, specs) as one:
            caller = await one.caller(None, authorization="Bearer a")
            assert await tools(one, caller) == {f"s{number}_do" for number in range(count)}


async def test_what_is_being_tried_ends_with_the_agent_session() -> None:
    shared = Shared()
    async with bad_server() as server:
        go_on = hang(server)
        async with replica(shared, [server.spec(credentials=Credentials.FORWARD)]) as one:
            handle = await shared.store.begin(ANN)
            caller = await one.caller(handle, authorization="Bearer a")
            listing = asyncio.create_task(tools(one, caller))
            await eventually(lambda: asked(server) == 1)
            await one.agents.end(ANN, handle)
            assert await listing == set()
            assert (len(one.agents), caller.links.opened(one.upstreams._links["bad"])) == (0, None)
        go_on.set()


@pytest.mark.parametrize("credentials", [Credentials.NONE, Credentials.FORWARD])
async def test_what_happens_in_a_callers_own_upstream_session_is_heard_by_no_other(
    credentials: Credentials,
) -> None:
    shared, told = Shared(), list[Change]()
    shared.changes.subscribe(told.append)
    uri = "notes://notes/today"
    async with (
        hosted(legacy=True) as host,
        replica(shared, [host.spec("notes", credentials=credentials)]) as one,
    ):
        ann = await one.caller(None, authorization="Bearer a")
        await tools(one, ann)
        await one.upstreams.listening.watch(ANN, None, uri)

        def heard(kind: ChangeKind) -> list[Change]:
            return [each for each in told if each.kind is kind]

        # Its stream of news may not be open yet.
        async with asyncio.timeout(60):
            while not heard(ChangeKind.RESOURCE):
                await one.call(ann, "notes_touch")
        own = heard(ChangeKind.RESOURCE)
        if credentials is Credentials.FORWARD:
            told.clear()
            await one.call(ann, "notes_grow")
            await eventually(lambda: bool(heard(ChangeKind.TOOLS)))
            own += heard(ChangeKind.TOOLS)
        for change in own:
            assert change.concerns(ANN.tenant, None, state_key(ANN, None))
            assert not change.concerns(BOB.tenant, None, state_key(BOB, None))
            assert not change.concerns(ANN.tenant, "session", "session")


def listened(server: BadServer) -> list[str | None]:
    """Whose authorization it was shown when it was asked to tell of its resource, which it is from now on."""

    async def greet(_: Request, message: dict[str, Any]) -> Response:
        greeted = json.loads(bytes((hello := server.greeting(message)).body))
        greeted["result"]["capabilities"]["resources"] = {"subscribe": True}
        return JSONResponse(greeted, headers={"mcp-session-id": hello.headers["mcp-session-id"]})

    async def subscribe(request: Request, message: dict[str, Any]) -> Response:
        shown.append(request.headers.get("authorization"))
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": {}})

    shown: list[str | None] = []
    server.on |= {"initialize": greet, "resources/subscribe": subscribe}
    return shown


async def test_who_listens_before_a_first_call_is_shown_as_who_asks_to_listen() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec(**OF_CALLERS)]) as one:
        shown = listened(server)
        for authorization, uri in [("Bearer a", "notes://bad/one"), ("Bearer b", "notes://bad/two")]:
            await one.upstreams.listening.watch(ANN, None, uri, authorization)
        assert shown == ["Bearer a", "Bearer b"]
        greeted = [headers.get("authorization") for of, headers in server.asked if of == "initialize"]
        assert greeted == ["Bearer a"]


async def test_who_listens_with_nobodys_authorization_is_listened_for_with_the_next_call() -> None:
    shared = Shared()
    async with bad_server() as server, replica(shared, [server.spec(**OF_CALLERS)]) as one:
        shown = listened(server)
        await one.upstreams.listening.watch(ANN, None, "notes://bad/one")
        assert not server.asked
        await one.call(await one.caller(None, authorization="Bearer a"), "bad_do")
        assert shown == ["Bearer a"]
