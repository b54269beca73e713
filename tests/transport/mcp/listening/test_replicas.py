"""Several gateways over one registry and one Valkey, behind a proxy that sends each request to the next."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cwm.adapters.redis.agents.changes import RedisChanges
from cwm.adapters.redis.connection import connect
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.upstream import UpstreamSpec
from cwm.settings import Shared
from tests.cli.command import environment
from tests.transport.mcp.gateway import LEGACY, MODERN, Gateway, fastmcp_agent, sdk_agent
from tests.transport.mcp.gateway import gateway as running_gateway
from tests.transport.mcp.proxy import RoundRobin, balanced
from tests.transport.mcp.upstream_hosts import hosted
from tests.transport.mcp.wire import LIST, Wire, wired

pytestmark = pytest.mark.slow

TOOLS = Change(ChangeKind.TOOLS)
CONNECTIONS = [(connect, era) for connect in (fastmcp_agent, sdk_agent) for era in (LEGACY, MODERN)]


@dataclass(frozen=True, slots=True)
class Replica:
    gateway: Gateway
    wire: Wire

    async def publish(self, change: Change) -> None:
        await self.gateway.parts.base.shared.changes.publish(change)


@asynccontextmanager
async def replica(folder: Path, redis_url: str, *upstreams: UpstreamSpec) -> AsyncIterator[Replica]:
    """One that shares nothing but the database and Valkey, and already hears the others."""
    shared = Shared(shared_store_url=redis_url)
    async with (
        running_gateway(folder, shared=shared, upstreams=upstreams) as gateway,
        wired(gateway.url) as wire,
    ):
        changes = gateway.parts.base.shared.changes
        assert isinstance(changes, RedisChanges)
        async with asyncio.timeout(10):
            await changes.connected.wait()
        yield Replica(gateway, wire)


@pytest.fixture
async def replicas(tmp_path: Path, redis_url: str) -> AsyncIterator[tuple[Replica, Replica]]:
    async with replica(tmp_path, redis_url) as one, replica(tmp_path, redis_url) as other:
        yield one, other


@pytest.mark.parametrize(("connect_as", "era"), CONNECTIONS)
async def test_a_client_does_not_notice_that_its_calls_go_round(
    replicas: tuple[Replica, Replica], connect_as: Any, era: str
) -> None:
    async with balanced(*(one.gateway.url for one in replicas)) as (url, proxy):
        async with connect_as(url, era) as agent:
            for _ in range(50):
                assert (await agent.call("session_list")).value["sessions"] == []
        assert all(replica.answered >= 25 for replica in proxy.replicas.values())


async def test_a_session_of_one_replica_is_a_session_of_the_other(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    session = await one.wire.session(x_tenant="a")
    assert (await other.wire.post(LIST, mcp_session_id=session, x_tenant="a")).status_code == 200
    for each in replicas:
        assert (await each.wire.post(LIST, mcp_session_id=session, x_tenant="b")).status_code == 404
        assert (await each.wire.end(mcp_session_id=session, x_tenant="b")).status_code == 404
    assert (await one.wire.end(mcp_session_id=session, x_tenant="a")).status_code == 204
    for each in replicas:
        assert (await each.wire.post(LIST, mcp_session_id=session, x_tenant="a")).status_code == 404


async def test_a_session_that_ends_on_one_replica_ends_its_stream_on_the_other(
    replicas: tuple[Replica, Replica],
) -> None:
    one, other = replicas
    session = await one.wire.session()
    async with other.wire.stream(session) as stream:
        assert (await one.wire.end(mcp_session_id=session)).status_code == 204
        assert await stream.rest() == []


async def test_what_changes_on_one_replica_is_told_on_the_other_in_both_eras(
    replicas: tuple[Replica, Replica],
) -> None:
    one, other = replicas
    async with (
        other.wire.stream(await one.wire.session()) as stream,
        other.wire.listen({"toolsListChanged": True}) as listening,
    ):
        await one.publish(TOOLS)
        for heard in (stream, listening):
            assert (await heard.message())["method"] == "notifications/tools/list_changed"


async def test_a_subscription_made_on_one_replica_is_kept_by_the_stream_on_the_other(
    replicas: tuple[Replica, Replica],
) -> None:
    one, other = replicas
    session = await one.wire.session()
    async with other.wire.stream(session) as stream:
        for uri in ("file:///a", "file:///b"):
            assert (await one.wire.ask(session, "resources/subscribe", uri=uri)).status_code == 200
            await one.publish(Change(ChangeKind.RESOURCE, "file:///c"))
            await one.publish(Change(ChangeKind.RESOURCE, uri))
            assert (await stream.message())["params"] == {"uri": uri}


async def test_of_a_sessions_streams_on_two_replicas_one_is_told_and_the_other_takes_over(
    replicas: tuple[Replica, Replica],
) -> None:
    one, other = replicas
    session = await one.wire.session()
    async with one.wire.stream(session) as older:
        async with other.wire.stream(session) as newer:
            await other.publish(TOOLS)
            assert (await newer.message())["method"] == "notifications/tools/list_changed"
        async with asyncio.timeout(10):
            while len(other.gateway.face.streams):  # noqa: ASYNC110  Nobody tells that a leaving was seen.
                await asyncio.sleep(0.01)
        await other.publish(Change(ChangeKind.PROMPTS))
        assert (await older.message())["method"] == "notifications/prompts/list_changed"


@pytest.mark.parametrize(("connect_as", "era"), CONNECTIONS)
async def test_an_agent_keeps_its_session_with_a_stateful_upstream_on_whatever_replica(
    tmp_path: Path, redis_url: str, connect_as: Any, era: str
) -> None:
    async with (
        hosted(legacy=True) as host,
        replica(tmp_path, redis_url, host.spec("notes")) as one,
        replica(tmp_path, redis_url, host.spec("notes")) as other,
        balanced(one.gateway.url, other.gateway.url) as (url, proxy),
    ):
        async with connect_as(url, era) as agent:
            counted = [(await agent.call("notes_count")).text for _ in range(6)]
        assert all(replica.answered > 1 for replica in proxy.replicas.values())
        assert counted == ["1", "2", "3", "4", "5", "6"]
        assert len(host.seen.counts) == 1


async def test_a_resource_of_an_upstream_that_changes_is_told_on_whatever_replica_the_client_listens(
    tmp_path: Path, redis_url: str
) -> None:
    async with (
        hosted(legacy=True) as host,
        replica(tmp_path, redis_url, host.spec("notes")) as one,
        replica(tmp_path, redis_url, host.spec("notes")) as other,
    ):
        session = await one.wire.session()
        async with other.wire.stream(session) as stream:
            uri = "notes://notes/today"
            assert (await one.wire.ask(session, "resources/subscribe", uri=uri)).status_code == 200
            called = {"name": "notes_touch", "arguments": {}}
            assert (await one.wire.ask(session, "tools/call", **called)).status_code == 200
            while (told := await stream.message())["method"] != "notifications/resources/updated":
                pass
        assert told["params"] == {"uri": uri}


@dataclass(frozen=True, slots=True)
class Process:
    """``cwm serve``, as it is run."""

    url: str
    process: asyncio.subprocess.Process

    @classmethod
    async def start(cls, folder: Path, **variables: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cwm", "serve", "--port", "0"),
            cwd=folder,
            env=environment(folder, {"CWM_SECRET": "a test's secret", **variables}),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        async with asyncio.timeout(60):
            ready = (await process.stdout.readline()).decode()
        assert ready.startswith("CWM is ready: "), ready
        return cls(ready.removeprefix("CWM is ready: ").partition("/mcp")[0], process)

    async def stop(self) -> None:
        """As a supervisor does. What is open must not hold it up."""
        self.process.terminate()
        async with asyncio.timeout(20):
            assert await self.process.wait() == 0

    def kill(self) -> None:
        """For one that a failed test left running."""
        if self.process.returncode is None:
            self.process.kill()


class EndlessCalls:
    """Clients of both eras that call all the time, one after the other has answered."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.calls: dict[str, int] = {}
        self.heard: dict[str, asyncio.Event] = {}

    async def run(self, connect_as: Any, era: str, url: str) -> None:
        name, heard = f"{connect_as.__name__} {era}", asyncio.Event()

        async def hear(message: Any) -> None:
            del message
            heard.set()

        async with connect_as(url, era, message_handler=hear) as agent:
            self.calls[name] = 0
            if era == LEGACY:
                self.heard[name] = heard
            while not self.done.is_set():
                assert (await agent.call("session_list")).value["sessions"] == []
                self.calls[name] += 1

    async def goes_on(self) -> None:
        """Wait until every client has had ten more answers."""
        before = dict(self.calls)
        async with asyncio.timeout(60):
            while not all(self.calls[name] >= count + 10 for name, count in before.items()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def replace(proxy: RoundRobin, old: Process, new: Process) -> None:
    proxy.add(new.url)
    taken_out = await proxy.take_out(old.url)
    await old.stop()
    await taken_out.http.aclose()


@pytest.mark.slow
async def test_no_client_sees_that_three_replicas_are_replaced_one_by_one(
    tmp_path: Path, postgres_url: str, redis_url: str
) -> None:
    variables = {"CWM_DATABASE_URL": postgres_url, "CWM_SHARED_STORE_URL": redis_url}
    async with AsyncExitStack() as stack:

        async def started() -> Process:
            process = await Process.start(tmp_path, **variables)
            stack.callback(process.kill)
            return process

        running = [await started() for _ in range(3)]
        url, proxy = await stack.enter_async_context(balanced(*(each.url for each in running)))
        load = EndlessCalls()
        async with asyncio.TaskGroup() as clients:
            for connect_as, era in CONNECTIONS:
                clients.create_task(load.run(connect_as, era, url))
            async with asyncio.timeout(60):
                while len(load.calls) < len(CONNECTIONS):  # noqa: ASYNC110  They connect at their own time.
                    await asyncio.sleep(0.01)
            for at, old in enumerate(running):
                await load.goes_on()
                running[at] = await started()
                await replace(proxy, old, running[at])
            await load.goes_on()
            await _all_hear(load, redis_url)
            load.done.set()
        for each in running:
            await each.stop()


async def _all_hear(load: EndlessCalls, redis_url: str) -> None:
    """The streams that the old replicas ended are open again on new ones."""
    client = connect(redis_url)
    changes = RedisChanges(client)
    async with asyncio.timeout(30):
        for heard in load.heard.values():
            while not heard.is_set():
                await changes.publish(TOOLS)
                await asyncio.sleep(0.05)
    await client.aclose()


async def test_what_one_replica_sets_is_heard_and_read_on_the_other_at_once(
    replicas: tuple[Replica, Replica],
) -> None:
    one, other = replicas
    prefix = "cwm://context/workspace:build/files/*"
    session = await other.wire.session()
    for uri in (prefix, "cwm://context/session/mine"):
        await other.wire.ask(session, "resources/subscribe", uri=uri)
    async with (
        other.wire.stream(session) as stream,
        fastmcp_agent(one.gateway.url, MODERN, "acme") as writer,
        fastmcp_agent(other.gateway.url, LEGACY, "acme") as reader,
    ):
        await writer.call("context_set", {"key": "mine", "value": 0})
        for number in range(20):
            place = {"key": "files/a", "scope": "workspace:build"}
            await writer.call("context_set", {**place, "value": number})
            assert (await reader.call("context_get", place)).value["value"] == number
        assert (await stream.message())["params"] == {"uri": prefix}
        assert (await reader.call("context_list", {"scope": "workspace:build"})).value["entries"][0][
            "version"
        ] == 20
