"""An upstream of 2026-07-28, by the protocol's own SDK, that changes while clients of both eras listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types import INVALID_PARAMS, SubscriptionsListenRequestParams

from cwm.domain.upstream import Credentials, UpstreamSpec
from tests.adapters.upstream.bad_server import bad_server
from tests.transport.mcp.gateway import LEGACY, MODERN, gateway, serving
from tests.transport.mcp.upstream_hosts import reserved_port
from tests.transport.mcp.wire import EventStream, Wire, wired

pytestmark = pytest.mark.slow

OWN_URI = "notes://today"
URI = "notes://notes/today"
UNKNOWN = "notes://nowhere"
EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": [URI],
}


class Changing:
    """Its port stays when it is stopped and started; whoever listened has to do so again."""

    def __init__(self) -> None:
        self.port = reserved_port()
        self.tools = ["first"]
        self._server: MCPServer
        self.bus = InMemorySubscriptionBus()
        self.refused = asyncio.Event()
        self.asked, self.admits = asyncio.Event(), asyncio.Event()
        self.admits.set()
        self._open = AsyncExitStack()

    @property
    def spec(self) -> UpstreamSpec:
        return UpstreamSpec("notes", url=f"http://127.0.0.1:{self.port}/mcp")

    def server(self) -> MCPServer:
        server = self._server = MCPServer("notes", subscriptions=self.bus)
        for name in self.tools:
            server.tool(name=name)(lambda: "done")
        server.resource(OWN_URI, name="today")(lambda: "milk")
        server.prompt(name="greet")(lambda: "Hello.")
        self._refuse_what_is_unknown(server._lowlevel_server)
        return server

    def _refuse_what_is_unknown(self, wire: Server[Any]) -> None:
        own = wire.get_request_handler("subscriptions/listen")
        assert own is not None
        listens = own.handler

        async def listen(
            context: ServerRequestContext[Any, Any], params: SubscriptionsListenRequestParams
        ) -> Any:
            if UNKNOWN in (params.notifications.resource_subscriptions or ()):
                self.refused.set()
                raise MCPError(INVALID_PARAMS, "There is no such resource.")
            self.asked.set()
            await self.admits.wait()
            return await listens(context, params)

        wire.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, listen)

    def add_tool(self) -> None:
        self._server.tool(name="second")(lambda: "done")

    def add_prompt(self) -> None:
        self._server.prompt(name="part")(lambda: "Farewell.")

    def add_resource(self) -> None:
        self._server.resource("notes://tomorrow", name="tomorrow")(lambda: "bread")

    async def start(self) -> None:
        self.bus = InMemorySubscriptionBus()
        await self._open.enter_async_context(serving(self.server().streamable_http_app(), port=self.port))

    async def stop(self) -> None:
        await self._open.aclose()


@pytest.fixture
async def upstream() -> AsyncIterator[Changing]:
    changing = Changing()
    await changing.start()
    yield changing
    await changing.stop()


@asynccontextmanager
async def listened_to(folder: Path, upstream: Changing) -> AsyncIterator[tuple[Wire, str, list[EventStream]]]:
    """A client of each era, which wants to hear of everything."""
    async with gateway(folder, upstreams=[upstream.spec]) as running, wired(running.url) as wire:
        session = await wire.session()
        assert (await wire.ask(session, "tools/list")).status_code == 200
        async with wire.stream(session) as stream, wire.listen(EVERYTHING) as listening:
            assert (await wire.ask(session, "resources/subscribe", uri=URI)).status_code == 200
            yield wire, session, [stream, listening]


async def until_told(streams: list[EventStream], method: str, change: Callable[[], Awaitable[None]]) -> None:
    """The upstream says so again and again: when its listener is there, nobody tells."""

    async def told(stream: EventStream) -> None:
        while (message := await stream.message())["method"] != method:
            pass
        if "uri" in (message.get("params") or {}):
            assert message["params"]["uri"] == URI

    telling = asyncio.gather(*(told(each) for each in streams))
    async with asyncio.timeout(30):
        while not telling.done():
            await change()
            await asyncio.wait({telling}, timeout=0.05)
    await telling


@pytest.mark.parametrize(
    ("part", "add", "event", "new"),
    [
        ("tools", Changing.add_tool, ToolsListChanged(), "notes_second"),
        ("prompts", Changing.add_prompt, PromptsListChanged(), "notes_part"),
        ("resources", Changing.add_resource, ResourcesListChanged(), "notes://notes/tomorrow"),
    ],
)
async def test_a_list_that_changed_is_told_in_both_eras_and_has_what_is_new(
    tmp_path: Path,
    upstream: Changing,
    part: str,
    add: Callable[[Changing], None],
    event: ServerEvent,
    new: str,
) -> None:
    async with listened_to(tmp_path, upstream) as (wire, session, streams):
        assert new not in (await wire.ask(session, f"{part}/list")).text
        add(upstream)
        await until_told(streams, f"notifications/{part}/list_changed", lambda: upstream.bus.publish(event))
        assert new in (await wire.ask(session, f"{part}/list")).text


async def test_a_resource_that_changed_is_told_in_both_eras(tmp_path: Path, upstream: Changing) -> None:
    async with listened_to(tmp_path, upstream) as (_, _, streams):
        updated = "notifications/resources/updated"
        await until_told(streams, updated, lambda: upstream.bus.publish(ResourceUpdated(OWN_URI)))


async def test_a_subscription_that_an_upstream_refuses_costs_the_others_nothing(
    tmp_path: Path, upstream: Changing
) -> None:
    async with listened_to(tmp_path, upstream) as (wire, session, streams):
        updated = "notifications/resources/updated"
        await until_told(streams, updated, lambda: upstream.bus.publish(ResourceUpdated(OWN_URI)))
        await wire.ask(session, "resources/subscribe", uri="notes://notes/nowhere")
        async with asyncio.timeout(30):
            await upstream.refused.wait()
        await until_told(streams, updated, lambda: upstream.bus.publish(ResourceUpdated(OWN_URI)))
        upstream.add_tool()
        changed = "notifications/tools/list_changed"
        await until_told(streams, changed, lambda: upstream.bus.publish(ToolsListChanged()))


async def test_what_changes_while_another_resource_is_subscribed_to_is_told(
    tmp_path: Path, upstream: Changing
) -> None:
    async with listened_to(tmp_path, upstream) as (wire, session, streams):
        updated = "notifications/resources/updated"
        await until_told(streams, updated, lambda: upstream.bus.publish(ResourceUpdated(OWN_URI)))
        upstream.asked.clear()
        upstream.admits.clear()
        await wire.ask(session, "resources/subscribe", uri="notes://notes/tomorrow")
        async with asyncio.timeout(30):
            await upstream.asked.wait()
        upstream.add_tool()
        changed = "notifications/tools/list_changed"
        await until_told(streams, changed, lambda: upstream.bus.publish(ToolsListChanged()))
        upstream.admits.set()


async def test_after_a_restart_the_upstream_is_listened_to_again(tmp_path: Path, upstream: Changing) -> None:
    async with listened_to(tmp_path, upstream) as (wire, session, streams):
        await upstream.stop()
        upstream.tools.append("second")
        await upstream.start()
        # What it would have told while it was away is looked up, and told.
        changed = "notifications/tools/list_changed"
        await until_told(streams, changed, nothing)
        await until_listed(wire, session, "notes_second")
        updated = "notifications/resources/updated"
        await until_told(streams, updated, lambda: upstream.bus.publish(ResourceUpdated(OWN_URI)))


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_an_upstream_that_is_told_who_calls_is_shown_who_asks_to_listen(
    tmp_path: Path, era: str
) -> None:
    async with bad_server() as server:
        spec = server.spec("notes", credentials=Credentials.FORWARD)
        async with gateway(tmp_path, upstreams=[spec]) as running, wired(running.url) as wire:
            ann = {"authorization": "Bearer ann"}
            if era == LEGACY:
                assert (await wire.ask_as(era, "resources/subscribe", {"uri": URI}, **ann)).status_code == 200
            else:
                async with wire.listen(EVERYTHING, **ann):
                    pass
        greeted = {headers.get("authorization") for of, headers in server.asked if of == "initialize"}
        assert greeted == {"Bearer ann"}


async def nothing() -> None:
    """What is told anyway needs no more."""


async def until_listed(wire: Wire, session: str, name: str) -> None:
    async with asyncio.timeout(30):
        while name not in (await wire.ask(session, "tools/list")).text:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
