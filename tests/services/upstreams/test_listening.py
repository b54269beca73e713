"""Who listens to an upstream's resource goes on to hear of it, whatever becomes of the session that tells."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cwm.adapters.upstream import session
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import AgentSessionNotFoundError, EngineTimeoutError, UpstreamUnavailableError
from cwm.domain.upstream import Credentials, OfferKind, Selection, UpstreamSpec
from cwm.ports.upstream import UpstreamSession
from cwm.services.upstreams.link import LinkState
from cwm.services.upstreams.upstreams import CallerOf
from tests.adapters.upstream.bad_server import BadServer, bad_server, replying, result
from tests.adapters.upstream.programs import spec as program
from tests.eventually import eventually
from tests.services.replicas_of import ANN, Replica, Shared, replica
from tests.transport.mcp.upstream_hosts import hosted

pytestmark = pytest.mark.slow

URI = "notes://notes/today"
KINDS = ["stateless server", "stateful server", "program"]
# It tells whenever it is asked to, and whenever it is subscribed to.
PROGRAM = """
updated = json.dumps({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "notes://today"}})
subscribed = False
for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method")
    if method == "initialize":
        capabilities = {"tools": {}, "resources": {"subscribe": True}}
        answer(request, {"protocolVersion": "2025-06-18", "capabilities": capabilities,
                         "serverInfo": {"name": "notes", "version": "1"}})
    elif method == "tools/list":
        answer(request, {"tools": [{"name": "touch", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        answer(request, {"content": [{"type": "text", "text": str(os.getpid())}]})
    elif method == "server/discover":
        error = {"code": -32601, "message": "Method not found"}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)
    elif "id" in request:
        answer(request, {"resources": [], "resourceTemplates": []})
    subscribed = (subscribed or method == "resources/subscribe") and method != "resources/unsubscribe"
    if subscribed and method in ("resources/subscribe", "tools/call"):
        print(updated, flush=True)
"""


def program_spec() -> UpstreamSpec:
    return replace(program(PROGRAM), name="notes")


@asynccontextmanager
async def upstream(kind: str) -> AsyncIterator[UpstreamSpec]:
    if kind == "program":
        yield program_spec()
        return
    async with hosted(legacy=True) as host:
        yield host.spec("notes", stateless=kind == "stateless server")


def heard_of(shared: Shared) -> asyncio.Event:
    """Set whenever the resource is told of."""
    told = asyncio.Event()

    def hear(change: Change) -> None:
        if change.kind is ChangeKind.RESOURCE and change.uri == URI:
            told.set()

    shared.changes.subscribe(hear)
    return told


async def until_told(one: Replica, caller: CallerOf, told: asyncio.Event) -> None:
    """It changes again and again: a server tells on a stream that may not be open yet."""
    told.clear()
    async with asyncio.timeout(30):
        while not told.is_set():
            await one.call(caller, "notes_touch")
            with_luck = asyncio.create_task(told.wait())
            await asyncio.wait({with_luck}, timeout=0.1)
            with_luck.cancel()


async def is_reconfigured(one: Replica, *specs: UpstreamSpec) -> None:
    await one.upstreams.configure(specs)
    await eventually(
        lambda: (
            not one.upstreams.roster._coming
            and [each.spec for each in one.upstreams._links.values()] == [*specs]
        )
    )


async def has_its_session(one: Replica, caller: CallerOf) -> None:
    """Without having asked for anything, where it has one of its own."""
    link = one.upstreams._links["notes"]
    await link.settled()
    await eventually(lambda: link.shared or caller.links.opened(link) is not None)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_subscription_goes_on_when_its_upstream_is_configured_otherwise(kind: str) -> None:
    shared = Shared()
    told = heard_of(shared)
    async with upstream(kind) as spec, replica(shared, [spec]) as one:
        caller = await one.caller(await shared.store.begin(ANN))
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        await until_told(one, caller, told)
        for seconds in (200.0, 100.0):
            await is_reconfigured(one, replace(spec, call_seconds=seconds))
            await has_its_session(one, caller)
            await until_told(one, caller, told)
        await one.upstreams.listening.unwatch(ANN, caller.agent.agent_session, URI)
        assert not caller.agent.listening


@pytest.mark.parametrize("stateless", [True, False])
async def test_a_subscription_goes_on_when_its_upstream_begins_or_ceases_to_be_stateless(
    *, stateless: bool
) -> None:
    shared = Shared()
    told = heard_of(shared)
    async with hosted(legacy=True) as host, replica(shared, [host.spec("notes", stateless=stateless)]) as one:
        caller = await one.caller(await shared.store.begin(ANN))
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        await is_reconfigured(one, host.spec("notes", stateless=not stateless))
        await has_its_session(one, caller)
        await until_told(one, caller, told)


async def test_an_upstream_that_is_told_who_calls_is_asked_again_with_the_next_call() -> None:
    shared = Shared()
    told = heard_of(shared)
    async with hosted(legacy=True) as host:
        spec = host.spec("notes", credentials=Credentials.FORWARD)
        async with replica(shared, [spec]) as one:
            caller = await one.caller(await shared.store.begin(ANN), authorization="Bearer ann")
            await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
            await until_told(one, caller, told)
            await is_reconfigured(one, replace(spec, call_seconds=200))
            await until_told(one, caller, told)


async def test_what_is_not_shown_any_more_is_not_listened_to_any_more() -> None:
    shared = Shared()
    async with hosted(legacy=True) as host, replica(shared, [host.spec("notes", stateless=True)]) as one:
        caller = await one.caller(None)
        await one.upstreams.listening.watch(ANN, None, URI)
        hidden = Selection(deny=("notes://today",))
        await is_reconfigured(one, host.spec("notes", stateless=True, resources=hidden))
        assert not caller.agent.listening


@pytest.mark.parametrize("kind", KINDS)
async def test_a_subscription_goes_on_when_its_upstream_is_removed_and_comes_back(kind: str) -> None:
    shared = Shared()
    told = heard_of(shared)
    async with upstream(kind) as spec, replica(shared, [spec]) as one:
        caller = await one.caller(await shared.store.begin(ANN))
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        await until_told(one, caller, told)
        for _ in range(2):
            await is_reconfigured(one)
            await is_reconfigured(one, spec)
            await has_its_session(one, caller)
            await until_told(one, caller, told)


async def test_who_listens_before_an_upstream_is_configured_hears_of_it_once_it_is() -> None:
    shared = Shared()
    told = heard_of(shared)
    async with hosted(legacy=True) as host, replica(shared, []) as one:
        caller = await one.caller(await shared.store.begin(ANN))
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        await is_reconfigured(one, host.spec("notes"))
        await has_its_session(one, caller)
        await until_told(one, caller, told)


@pytest.mark.parametrize("stateless", [True, False])
async def test_a_stream_that_opens_while_an_upstream_is_away_hears_of_it_once_it_is_back(
    *, stateless: bool
) -> None:
    shared = Shared()
    told = heard_of(shared)
    async with hosted(legacy=True) as host:
        await host.stop()
        async with replica(shared, [host.spec("notes", stateless=stateless)]) as one:
            caller = await one.caller(await shared.store.begin(ANN))
            link = one.upstreams._links["notes"]
            await eventually(lambda: link.state is LinkState.AWAY)
            with pytest.raises(UpstreamUnavailableError):
                await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI, authorization="")
            assert not caller.agent.listening
            await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
            await host.start()
            await bounded(link.ready.wait())
            await has_its_session(one, caller)
            await until_told(one, caller, told)
            await one.upstreams.listening.unwatch(ANN, caller.agent.agent_session, URI)
            assert not caller.agent.listening


SUBSCRIBE = "resources/subscribe"


@asynccontextmanager
async def silent_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BadServer]:
    """It could tell of resources, and does not answer who asks it to."""
    monkeypatch.setattr(session, "_WATCH_SECONDS", 0.2)
    async with bad_server() as server:
        server.capabilities = {"resources": {"subscribe": True}}

        async def listing(request: Request, message: dict[str, Any]) -> Response:
            if request.headers["mcp-session-id"] not in server.sessions:
                return Response(status_code=404)
            return JSONResponse(result(message, {"resources": [], "resourceTemplates": []}))

        server.on["resources/list"] = server.on["resources/templates/list"] = listing
        server.on[SUBSCRIBE] = server.holding
        yield server


def answers(server: BadServer) -> asyncio.Event:
    """From now on; set when it does."""
    answered = asyncio.Event()

    async def answer(_: Request, message: dict[str, Any]) -> Response:
        answered.set()
        return JSONResponse(result(message, {}))

    server.on[SUBSCRIBE] = answer
    return answered


@pytest.mark.parametrize("stateless", [True, False])
@pytest.mark.parametrize("how", ["silent", "broken"])
async def test_what_an_upstream_does_not_answer_to_a_stream_that_opens_it_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, how: str, *, stateless: bool
) -> None:
    shared = Shared()
    async with silent_server(monkeypatch) as server:
        if how == "broken":
            server.on[SUBSCRIBE] = replying(lambda: Response(status_code=502))
        async with replica(shared, [server.spec("notes", stateless=stateless)]) as one:
            caller = await one.caller(await shared.store.begin(ANN))
            await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
            initialized = server.methods().count("initialize")
            await bounded(answers(server).wait())
            assert server.methods().count("initialize") == initialized


@pytest.mark.parametrize("stateless", [True, False])
async def test_what_a_new_session_does_not_answer_it_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, *, stateless: bool
) -> None:
    shared = Shared()
    async with (
        silent_server(monkeypatch) as server,
        replica(shared, [server.spec("notes", stateless=stateless)]) as one,
    ):
        answered = answers(server)
        caller = await one.caller(await shared.store.begin(ANN))
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        await bounded(answered.wait())
        server.on[SUBSCRIBE] = server.holding
        server.began.clear()
        server.sessions.clear()
        one.upstreams._links["notes"].doubt()
        await bounded(server.began.wait())
        await bounded(answers(server).wait())


async def test_what_an_upstream_that_is_told_who_calls_does_not_answer_its_next_session_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = Shared()
    async with (
        silent_server(monkeypatch) as server,
        replica(shared, [server.spec("notes", credentials=Credentials.FORWARD)]) as one,
    ):
        caller = await one.caller(await shared.store.begin(ANN), authorization="Bearer ann")
        await one.upstreams.offering(caller, OfferKind.RESOURCES)
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        answered = answers(server)
        server.sessions.clear()
        await one.upstreams.request(caller, "notes", "resources/list", {}, repeatable=True)
        await bounded(answered.wait())


async def test_who_ended_before_an_upstream_could_be_asked_is_not_listening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = Shared()
    async with silent_server(monkeypatch) as server:
        answers(server)
        began, go_on = asyncio.Event(), asyncio.Event()

        async def late(_: Request, message: dict[str, Any]) -> Response:
            began.set()
            await go_on.wait()
            return server.greeting(message)

        server.on["initialize"] = late
        spec = server.spec("notes", stateless=True, connect_seconds=30)
        async with replica(shared, [spec]) as one:
            await bounded(began.wait())
            caller = await one.caller(await shared.store.begin(ANN))
            watching = asyncio.create_task(
                one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI, authorization="")
            )
            link = one.upstreams._links["notes"]
            await eventually(lambda: not caller.agent.idle)
            await one.agents.end(ANN, str(caller.agent.agent_session))
            await eventually(lambda: has_ended(caller))
            go_on.set()
            with pytest.raises(AgentSessionNotFoundError):
                await watching
            assert not link.watches


async def test_what_one_is_refused_for_want_of_an_answer_is_asked_again_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = Shared()
    async with (
        silent_server(monkeypatch) as server,
        replica(shared, [server.spec("notes", stateless=True)]) as one,
    ):
        first, second = [await shared.store.begin(ANN) for _ in range(2)]
        asking = asyncio.create_task(one.upstreams.listening.watch(ANN, first, URI, authorization=""))
        await bounded(server.began.wait())
        await one.upstreams.listening.watch(ANN, second, URI, authorization="")
        with pytest.raises(EngineTimeoutError):
            await asking
        await bounded(answers(server).wait())


async def test_what_is_shown_again_is_listened_to_again() -> None:
    shared = Shared()
    told = heard_of(shared)
    async with hosted(legacy=True) as host, replica(shared, [host.spec("notes", stateless=True)]) as one:
        caller = await one.caller(await shared.store.begin(ANN))
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        hidden = Selection(deny=("notes://today",))
        await is_reconfigured(one, host.spec("notes", stateless=True, resources=hidden))
        await is_reconfigured(one, host.spec("notes", stateless=True))
        await until_told(one, caller, told)


async def test_who_ceases_to_listen_while_an_upstream_is_removed_is_not_taken_up_again() -> None:
    shared = Shared()
    async with hosted(legacy=True) as host, replica(shared, [host.spec("notes")]) as one:
        left, ended = [await one.caller(await shared.store.begin(ANN)) for _ in range(2)]
        for each in (left, ended):
            await one.upstreams.listening.watch(ANN, each.agent.agent_session, URI)
        await is_reconfigured(one)
        await one.upstreams.listening.unwatch(ANN, left.agent.agent_session, URI)
        await one.agents.end(ANN, str(ended.agent.agent_session))
        await eventually(lambda: not one.upstreams.listening._awaited)
        await is_reconfigured(one, host.spec("notes"))
        assert not left.agent.listening
        assert not ended.agent.listening


async def test_who_begins_to_listen_while_an_upstream_is_replaced_hears_of_the_new_one() -> None:
    shared = Shared()
    told = heard_of(shared)
    async with bad_server() as old, hosted(legacy=True) as new:
        old.on["initialize"] = old.holding
        async with replica(shared, [old.spec("notes", connect_seconds=30)]) as one:
            await old.began.wait()
            caller = await one.caller(None)
            watching = asyncio.create_task(one.upstreams.listening.watch(ANN, None, URI))
            await is_reconfigured(one, new.spec("notes", stateless=True))
            await watching
            await until_told(one, caller, told)


async def test_a_program_that_dies_is_started_again_for_who_only_listens() -> None:
    shared = Shared()
    told = heard_of(shared)
    async with replica(shared, [program_spec()]) as one:
        caller = await one.caller(await shared.store.begin(ANN))
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        pids = set()
        for _ in range(2):
            await until_told(one, caller, told)
            pids.add(await killed(one, caller))
            told.clear()
            # It tells when it is subscribed to.
            await bounded(told.wait())
        last = own_session(one, caller)
        await one.agents.end(ANN, str(caller.agent.agent_session))
        await bounded(last.ended())
        await eventually(lambda: not one.upstreams.listening._keeping)
    assert len(pids) == 2


async def test_a_server_that_was_restarted_is_asked_again_for_who_only_listens() -> None:
    shared = Shared()
    told = heard_of(shared)
    async with hosted(legacy=True) as host, replica(shared, [host.spec("notes")]) as one:
        caller = await one.caller(await shared.store.begin(ANN))
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        await until_told(one, caller, told)
        link = one.upstreams._links["notes"]
        before = own_session(one, caller)
        await host.stop()
        await eventually(lambda: link.state is LinkState.AWAY)
        await host.start()
        await bounded(before.ended())
        await eventually(lambda: caller.links.opened(link) is not None)
        await until_told(one, caller, told)


async def test_who_only_listens_to_a_program_that_fails_to_start_hears_of_it_once_it_starts(
    tmp_path: Path,
) -> None:
    shared = Shared()
    told = heard_of(shared)
    refusing, refused = tmp_path / "refusing", tmp_path / "refused"
    marker = (
        f"import pathlib\nif pathlib.Path({str(refusing)!r}).exists():\n"
        f"    pathlib.Path({str(refused)!r}).touch()\n    raise SystemExit(1)\n"
    )
    spec = replace(program(marker + PROGRAM), name="notes")
    async with replica(shared, [spec]) as one:
        caller = await one.caller(await shared.store.begin(ANN))
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        await until_told(one, caller, told)
        refusing.touch()
        await killed(one, caller)
        told.clear()
        await eventually(refused.exists)
        refusing.unlink()
        await bounded(told.wait())


async def test_what_nobody_uses_is_not_kept_in_use_by_what_it_listened_to() -> None:
    shared = Shared()
    told = heard_of(shared)
    async with replica(shared, [program_spec()]) as one:
        caller = await one.caller(await shared.store.begin(ANN))
        await one.upstreams.listening.watch(ANN, caller.agent.agent_session, URI)
        await until_told(one, caller, told)
        session = own_session(one, caller)
        pid = int(await one.call(caller, "notes_touch"))
        shared.clock.seconds += 61
        os.kill(pid, signal.SIGKILL)
        await bounded(session.ended())
        await eventually(lambda: not one.upstreams.listening._keeping)
        assert not await shared.store.alive(caller.agent.key)


async def killed(one: Replica, caller: CallerOf) -> int:
    """Which process was the agent session's own, once it is gone."""
    session = own_session(one, caller)
    pid = int(await one.call(caller, "notes_touch"))
    os.kill(pid, signal.SIGKILL)
    await bounded(session.ended())
    return pid


def own_session(one: Replica, caller: CallerOf) -> UpstreamSession:
    session = caller.links.opened(one.upstreams._links["notes"])
    assert session is not None
    return session


def has_ended(caller: CallerOf) -> bool:
    try:
        caller.agent.refuse_if_ended()
    except AgentSessionNotFoundError:
        return True
    return False


async def bounded(work: Coroutine[Any, Any, Any]) -> None:
    async with asyncio.timeout(30):
        await work
