"""What a client is told without having asked again, in either era."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastmcp import Client
from mcp_types import ServerNotification

from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import EngineConnectionError
from cwm.domain.principal import Principal
from tests.contracts.nouns import freeze
from tests.eventually import eventually
from tests.transport.mcp.gateway import LEGACY, MODERN, Gateway, faced, fastmcp_agent, sdk_agent
from tests.transport.mcp.gateway import gateway as running_gateway
from tests.transport.mcp.wire import Wire, wired

pytestmark = pytest.mark.slow

LISTS = [ChangeKind.TOOLS, ChangeKind.PROMPTS, ChangeKind.RESOURCES]
LIST_CHANGED = [f"notifications/{kind}/list_changed" for kind in LISTS]
EVERY_LIST = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
SUBSCRIBING_IS_OLD = "ignore:resources/subscribe is removed:mcp.shared.exceptions.MCPDeprecationWarning"


def updated(uri: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}


async def publish(gateway: Gateway, kind: ChangeKind, uri: str | None = None, **whom: str) -> None:
    await gateway.parts.base.shared.changes.publish(Change(kind, uri, **whom))


async def test_a_stream_tells_of_every_list_that_changed(gateway: Gateway, wire: Wire) -> None:
    async with wire.stream(await wire.session()) as stream:
        for kind in LISTS:
            await publish(gateway, kind)
        assert [await stream.message() for _ in LISTS] == [
            {"jsonrpc": "2.0", "method": method} for method in LIST_CHANGED
        ]


async def test_a_listen_stream_tells_what_it_was_asked_for(gateway: Gateway, wire: Wire) -> None:
    wanted = {"promptsListChanged": True, "resourceSubscriptions": ["file:///a"]}
    async with wire.listen(wanted) as stream:
        for kind in LISTS:
            await publish(gateway, kind)
        await publish(gateway, ChangeKind.RESOURCE, "file:///b")
        await publish(gateway, ChangeKind.RESOURCE, "file:///a")
        heard = [await stream.message() for _ in range(2)]
    assert [message["method"] for message in heard] == [LIST_CHANGED[1], "notifications/resources/updated"]
    assert heard[1]["params"]["uri"] == "file:///a"


async def test_only_resources_that_a_session_subscribed_to_are_told(gateway: Gateway, wire: Wire) -> None:
    session = await wire.session()
    assert (await wire.ask(session, "resources/subscribe", uri="file:///a")).status_code == 200
    async with wire.stream(session) as stream:
        assert (await wire.ask(session, "resources/subscribe", uri="file:///b")).status_code == 200
        for uri in ("file:///c", "file:///b", "file:///a"):
            await publish(gateway, ChangeKind.RESOURCE, uri)
        assert [await stream.message(), await stream.message()] == [
            updated("file:///b"),
            updated("file:///a"),
        ]
        assert (await wire.ask(session, "resources/unsubscribe", uri="file:///b")).status_code == 200
        for uri in ("file:///b", "file:///a"):
            await publish(gateway, ChangeKind.RESOURCE, uri)
        assert await stream.message() == updated("file:///a")


async def test_a_subscription_outlives_the_stream(gateway: Gateway, wire: Wire) -> None:
    session = await wire.session()
    await wire.ask(session, "resources/subscribe", uri="file:///a")
    for _ in range(2):
        async with wire.stream(session) as stream:
            await publish(gateway, ChangeKind.RESOURCE, "file:///a")
            assert await stream.message() == updated("file:///a")


async def test_nobody_hears_of_another_tenant_or_another_agent_session(gateway: Gateway, wire: Wire) -> None:
    session, other = await wire.session(x_tenant="a"), await wire.session(x_tenant="a")
    async with (
        wire.stream(session, x_tenant="a") as stream,
        wire.listen(EVERY_LIST, x_tenant="a") as listening,
    ):
        await publish(gateway, ChangeKind.PROMPTS, tenant="b")
        await publish(gateway, ChangeKind.RESOURCES, agent_session=other)
        await publish(gateway, ChangeKind.TOOLS, tenant="a", agent_session=session)
        assert (await stream.message())["method"] == LIST_CHANGED[0]
        assert (await listening.message())["method"] == LIST_CHANGED[0]


async def test_of_several_streams_of_a_session_one_is_told_and_another_takes_over(
    gateway: Gateway, wire: Wire
) -> None:
    session = await wire.session()
    async with wire.stream(session) as older:
        async with wire.stream(session) as newer:
            await publish(gateway, ChangeKind.TOOLS)
            assert (await newer.message())["method"] == LIST_CHANGED[0]
        async with asyncio.timeout(10):
            while len(gateway.face.streams) > 1:  # noqa: ASYNC110  Nobody tells that a client's leaving was seen.
                await asyncio.sleep(0.01)
        await publish(gateway, ChangeKind.PROMPTS)
        assert (await older.message())["method"] == LIST_CHANGED[1]


async def test_a_stream_ends_with_its_session(wire: Wire) -> None:
    session = await wire.session()
    async with wire.stream(session) as stream:
        assert (await wire.end(mcp_session_id=session)).status_code == 204
        assert await stream.rest() == []


async def test_a_client_that_leaves_leaves_nothing_behind(gateway: Gateway, wire: Wire) -> None:
    session = await wire.session()
    async with wire.stream(session), wire.listen(EVERY_LIST):
        assert len(gateway.face.streams) == len(gateway.face.subscriptions) == 1
    async with asyncio.timeout(10):
        while len(gateway.face.streams) or len(gateway.face.subscriptions):  # noqa: ASYNC110  As above.
            await asyncio.sleep(0.01)
    assert (await wire.end(mcp_session_id=session)).status_code == 204


async def test_a_stream_without_a_session_is_refused_as_any_request(wire: Wire) -> None:
    session = await wire.session(x_tenant="a")
    assert (await wire.get()).status_code == 400
    assert (await wire.get(mcp_session_id="0" * 32)).status_code == 404
    assert (await wire.get(mcp_session_id=session, x_tenant="b")).status_code == 404
    assert (await wire.get(mcp_session_id=session, x_tenant="a", accept="text/html")).status_code == 406
    assert (await wire.get(mcp_session_id=session, mcp_protocol_version="2026-07-28")).status_code == 405


async def test_an_open_stream_shows_life_and_counts_as_use_until_its_session_is_gone(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, wired(gateway.url) as wire:
        gateway.face.streams._keepalive_seconds = 0.01
        session = await wire.session()
        used_at = gateway.sessions._sessions[session].used_at
        async with wire.stream(session) as stream:
            for _ in range(4):
                await stream.comment()
            assert gateway.sessions._sessions[session].used_at > used_at
            # Behind everybody's back, as when the news of an end were lost.
            await gateway.sessions.end(session)
            assert await stream.rest() == []


async def test_a_stream_whose_news_never_pauses_counts_as_use_too(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, wired(gateway.url) as wire:
        gateway.face.streams._keepalive_seconds = 0.5
        session = await wire.session()
        async with wire.stream(session) as stream, asyncio.timeout(5):
            await publish(gateway, ChangeKind.TOOLS)
            await stream.message()
            used_at = gateway.sessions._sessions[session].used_at
            while gateway.sessions._sessions[session].used_at == used_at:
                await publish(gateway, ChangeKind.TOOLS)
                await stream.message()


async def test_a_stopping_gateway_lets_go_of_who_only_listens(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with running_gateway(tmp_path) as gateway:
            wire = await stack.enter_async_context(wired(gateway.url))
            stream = await stack.enter_async_context(wire.stream(await wire.session()))
            listening = await stack.enter_async_context(wire.listen(EVERY_LIST))
            await publish(gateway, ChangeKind.TOOLS)
        assert [message["method"] for message in await stream.rest()] == LIST_CHANGED[:1]
        told, farewell = await listening.rest()
    assert told["method"] == LIST_CHANGED[0]
    assert farewell["id"] == "listening"
    assert "result" in farewell


@dataclass
class Recorded:
    """Keeps who is interested in what; refuses ``refused://``, and so many others as it is told to.

    Who watches ``slow://`` waits until that is ``answered``.
    """

    told: list[tuple[str, Principal, str | None, str]] = field(default_factory=list)
    refusing: int = 0
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(
        self,
        principal: Principal,
        agent_session: str | None,
        uri: str,
        authorization: str | None = None,
    ) -> None:
        if uri == "slow://":
            await self.answered.wait()
        if uri == "refused://" or self.refusing:
            self.refusing = max(0, self.refusing - 1)
            raise EngineConnectionError("Whoever has it is away.")
        self.told.append(("watch", principal, agent_session, uri))

    async def unwatch(self, principal: Principal, agent_session: str | None, uri: str) -> None:
        self.told.append(("unwatch", principal, agent_session, uri))

    async def until(self, *told: tuple[str, Principal, str | None, str]) -> None:
        async with asyncio.timeout(10):
            while self.told != list(told):  # noqa: ASYNC110  It is told by another task, at its own time.
                await asyncio.sleep(0.01)


@pytest.fixture
async def interested(tmp_path: Path) -> AsyncIterator[tuple[Recorded, Wire]]:
    interest = Recorded()
    async with running_gateway(tmp_path, interest=interest) as gateway, wired(gateway.url) as wire:
        yield interest, wire


AGENT = Principal("acme", "agent")


async def test_who_subscribes_is_told_to_whoever_has_the_resource(interested: tuple[Recorded, Wire]) -> None:
    interest, wire = interested
    session = await wire.session()
    await wire.ask(session, "resources/subscribe", uri="a:b")
    await wire.ask(session, "resources/unsubscribe", uri="a:b")
    await wire.ask(session, "resources/unsubscribe", uri="never:subscribed")
    await wire.ask(session, "resources/subscribe", uri="a:c")
    await wire.end(mcp_session_id=session)
    assert interest.told == [
        ("watch", AGENT, session, "a:b"),
        ("unwatch", AGENT, session, "a:b"),
        ("watch", AGENT, session, "a:c"),
        ("unwatch", AGENT, session, "a:c"),
    ]


async def test_a_stream_that_opens_renews_the_interest_of_its_session(
    interested: tuple[Recorded, Wire],
) -> None:
    interest, wire = interested
    session = await wire.session()
    await wire.ask(session, "resources/subscribe", uri="a:b")
    interest.told.clear()
    async with wire.stream(session):
        await interest.until(("watch", AGENT, session, "a:b"))


async def test_what_is_refused_to_a_stream_that_opens_costs_it_nothing_else(
    interested: tuple[Recorded, Wire],
) -> None:
    interest, wire = interested
    session = await wire.session()
    uris = {"a:b", "a:c", "a:d"}
    for uri in uris:
        await wire.ask(session, "resources/subscribe", uri=uri)
    interest.told.clear()
    interest.refusing = 1
    async with wire.stream(session):
        await eventually(lambda: len(interest.told) == 2)
    assert {uri for *_, uri in interest.told} < uris


async def test_who_is_slow_to_be_asked_delays_neither_the_others_nor_what_they_tell(tmp_path: Path) -> None:
    interest = Recorded()
    interest.answered.set()
    async with running_gateway(tmp_path, interest=interest) as gateway, wired(gateway.url) as wire:
        session = await wire.session()
        for uri in ("slow://", "a:b", "a:c", "a:d"):
            await wire.ask(session, "resources/subscribe", uri=uri)
        interest.told.clear()
        interest.answered.clear()
        async with wire.stream(session) as stream:
            await eventually(lambda: {uri for *_, uri in interest.told} == {"a:b", "a:c", "a:d"})
            await publish(gateway, ChangeKind.RESOURCE, "a:b")
            assert await stream.message() == updated("a:b")
            await wire.ask(session, "resources/unsubscribe", uri="a:b")
            await publish(gateway, ChangeKind.TOOLS)
            assert (await stream.message())["method"] == LIST_CHANGED[0]
            interest.answered.set()
            await eventually(lambda: ("watch", AGENT, session, "slow://") in interest.told)


async def test_the_last_listen_stream_of_a_principal_ends_its_interest(
    interested: tuple[Recorded, Wire],
) -> None:
    interest, wire = interested
    wanted = {"resourceSubscriptions": ["a:b", "a:b"]}
    begun = ("watch", AGENT, None, "a:b")
    async with wire.listen(wanted):
        async with wire.listen(wanted):
            await interest.until(begun)
        await interest.until(begun)
    await interest.until(begun, ("unwatch", AGENT, None, "a:b"))


async def test_of_two_listen_streams_that_open_at_once_one_hears_though_the_other_is_refused(
    tmp_path: Path,
) -> None:
    interest, wanted = Recorded(refusing=1), {"resourceSubscriptions": ["slow://"]}
    async with running_gateway(tmp_path, interest=interest) as gateway, wired(gateway.url) as wire:

        async def is_opened() -> bool:
            async with wire.listen(wanted):
                return True

        opening = [asyncio.create_task(is_opened()) for _ in range(2)]
        watching = gateway.face.subscriptions._watches
        await eventually(lambda: [each.listeners for each in watching.values()] == [2])
        interest.answered.set()
        outcomes = await asyncio.gather(*opening, return_exceptions=True)
        assert outcomes.count(True) == 1
        await interest.until(("watch", AGENT, None, "slow://"), ("unwatch", AGENT, None, "slow://"))


async def test_a_subscription_that_cannot_be_had_is_refused_with_its_code(
    interested: tuple[Recorded, Wire],
) -> None:
    interest, wire = interested
    session = await wire.session()
    refused = await wire.ask(session, "resources/subscribe", uri="refused://")
    data = json.loads(refused.text.partition("data: ")[2])["error"]["data"]
    assert data["code"] == "CWM-5001"
    long = await wire.ask(session, "resources/subscribe", uri="a" * 3000)
    assert json.loads(long.text.partition("data: ")[2])["error"]["data"]["code"] == "CWM-1003"
    await wire.end(mcp_session_id=session)
    assert interest.told == []


@dataclass
class Inbox:
    """A client's handler of messages."""

    messages: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    async def __call__(self, message: Any) -> None:
        await self.messages.put(message)

    async def next(self) -> ServerNotification:
        async with asyncio.timeout(10):
            notification: ServerNotification = await self.messages.get()
            return notification


@pytest.mark.filterwarnings(SUBSCRIBING_IS_OLD)
@pytest.mark.parametrize("connect", [fastmcp_agent, sdk_agent])
async def test_clients_of_the_handshake_era_are_told(gateway: Gateway, connect: Any) -> None:
    inbox, before = Inbox(), set(gateway.face.streams._open)
    async with connect(gateway.url, LEGACY, message_handler=inbox) as agent:
        async with asyncio.timeout(10):
            while not gateway.face.streams._open.keys() - before:  # noqa: ASYNC110  It opens at its own time.
                await asyncio.sleep(0.01)
        await agent.client.session.subscribe_resource("cwm://windows")
        capabilities = agent.client.session.server_capabilities
        assert capabilities.tools.list_changed
        assert capabilities.prompts.list_changed
        assert capabilities.resources.list_changed
        assert capabilities.resources.subscribe
        await publish(gateway, ChangeKind.TOOLS)
        await publish(gateway, ChangeKind.RESOURCE, "cwm://windows")
        assert (await inbox.next()).method == LIST_CHANGED[0]
        notification = await inbox.next()
        assert notification.method == "notifications/resources/updated"
        assert notification.params.uri == "cwm://windows"


async def test_a_client_of_2026_listens(gateway: Gateway) -> None:
    async with sdk_agent(gateway.url, MODERN) as agent:
        listening = agent.client.listen(tools_list_changed=True, resource_subscriptions=["cwm://windows"])
        async with listening as subscription:
            await publish(gateway, ChangeKind.TOOLS)
            await publish(gateway, ChangeKind.RESOURCE, "cwm://windows")
            heard = [await anext(subscription), await anext(subscription)]
    assert [type(event).__name__ for event in heard] == ["ToolsListChanged", "ResourceUpdated"]


@pytest.mark.filterwarnings(SUBSCRIBING_IS_OLD)
async def test_without_http_a_connection_is_told_all_the_same(gateway: Gateway) -> None:
    inbox, interest, before = Inbox(), Recorded(), len(gateway.sessions)
    face = faced(gateway.parts, interest=interest)
    async with Client(face, mode=LEGACY, message_handler=inbox) as client:
        await client.session.subscribe_resource("cwm://windows")
        await publish(gateway, ChangeKind.RESOURCE, "cwm://sessions")
        await publish(gateway, ChangeKind.RESOURCE, "cwm://windows")
        await publish(gateway, ChangeKind.PROMPTS)
        notification = await inbox.next()
        assert notification.method == "notifications/resources/updated"
        assert notification.params.uri == "cwm://windows"
        assert (await inbox.next()).method == LIST_CHANGED[1]
    assert len(gateway.sessions) == before
    assert interest.told[0][0] == "watch"
    await eventually(lambda: interest.told[-1][0] == "unwatch")


async def test_what_a_tenant_does_to_its_windows_its_agents_hear_and_no_others(
    gateway: Gateway, wire: Wire
) -> None:
    tenant = f"t-{uuid4().hex[:8]}"
    await freeze(gateway.parts.base.registry, "base", tenant=tenant)
    wanted = {"resourceSubscriptions": ["cwm://windows", "cwm://sessions"]}
    async with (
        fastmcp_agent(gateway.url, MODERN, tenant) as agent,
        wire.listen(wanted, x_tenant=tenant) as own,
        wire.listen(wanted, x_tenant="another") as foreign,
    ):
        clone = {"source_window": "base", "target_window": "branch", "retention": "best_effort"}
        assert (await agent.call("window_clone", clone)).value
        assert (await own.message())["params"]["uri"] == "cwm://windows"
        assert (await agent.call("window_clone", clone)).is_error
        assert (await agent.call("window_delete", {"window_name": "branch", "delete_blocks": False})).value
        told = [(await own.message())["params"]["uri"] for _ in range(2)]
        assert told == ["cwm://windows", "cwm://sessions"], "the last window of a session changes it, too"
        await publish(gateway, ChangeKind.RESOURCE, "cwm://sessions")
        assert (await own.message())["params"]["uri"] == "cwm://sessions"
        assert (await foreign.message())["params"]["uri"] == "cwm://sessions"
