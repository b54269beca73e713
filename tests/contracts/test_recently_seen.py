"""A busy agent session is not asked after with every call, and is forgotten with the news of its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis

from cwm.adapters.redis.agents.agent_sessions import RedisAgentSessions
from cwm.adapters.redis.agents.changes import RedisChanges
from cwm.adapters.redis.agents.recently_seen import RecentlySeen
from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.keys import session_key
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.principal import Principal

ANN, BOB = Principal("a", "ann"), Principal("a", "bob")


@dataclass(slots=True)
class Gateway:
    """One that hears the others, from when it ``reads``."""

    client: Redis
    changes: RedisChanges
    recent: RecentlySeen
    sessions: RedisAgentSessions

    async def end(self, session: str) -> None:
        assert await self.sessions.end(session)
        await self.changes.publish(Change(ChangeKind.ENDED, agent_session=session, tenant=ANN.tenant))

    async def asked(self) -> int:
        """How many scripts Redis has run for anybody."""
        return int((await self.client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"])


def made(client: Redis, ttl_seconds: float = 60) -> Gateway:
    changes = RedisChanges(client)
    recent = RecentlySeen(changes, ttl_seconds)
    return Gateway(client, changes, recent, RedisAgentSessions(client, ttl_seconds, recent))


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def gateway(client: Redis) -> AsyncIterator[Gateway]:
    one = made(client)
    reading = asyncio.create_task(one.changes.read())
    async with asyncio.timeout(10):
        await one.changes.connected.wait()
    yield one
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading


async def test_one_that_was_known_a_moment_ago_is_known_without_asking(gateway: Gateway) -> None:
    session = await gateway.sessions.begin(ANN)
    assert await gateway.sessions.touch(session, ANN)
    before = await gateway.asked()
    assert all([await gateway.sessions.touch(session, ANN) for _ in range(20)])
    assert await gateway.asked() == before


async def test_to_another_owner_it_is_unknown_all_the_same(gateway: Gateway) -> None:
    session = await gateway.sessions.begin(ANN)
    assert await gateway.sessions.touch(session, ANN)
    for other in (BOB, Principal("b", "ann")):
        assert not await gateway.sessions.touch(session, other)


async def test_one_that_another_gateway_ended_is_unknown_with_the_news(
    gateway: Gateway, client: Redis
) -> None:
    session, other = await gateway.sessions.begin(ANN), await gateway.sessions.begin(ANN)
    assert await gateway.sessions.touch(session, ANN)
    assert await gateway.sessions.touch(other, ANN)
    heard = asyncio.Event()
    gateway.changes.subscribe(lambda _: heard.set())
    await made(client).end(session)
    async with asyncio.timeout(10):
        await heard.wait()
    assert not gateway.recent.knows(session, ANN)
    assert gateway.recent.knows(other, ANN)
    assert not await gateway.sessions.touch(session, ANN)


async def test_one_that_this_gateway_ended_is_unknown_at_once(gateway: Gateway) -> None:
    session = await gateway.sessions.begin(ANN)
    assert await gateway.sessions.touch(session, ANN)
    await gateway.end(session)
    assert not await gateway.sessions.touch(session, ANN)


async def test_an_end_that_is_heard_while_redis_is_asked_counts(gateway: Gateway) -> None:
    session = await gateway.sessions.begin(ANN)
    ends = gateway.recent.ends()
    await gateway.end(session)
    # Redis was asked before the end, and its answer comes after the news.
    gateway.recent.seen(session, ANN, ends)
    assert not gateway.recent.knows(session, ANN)


async def test_who_does_not_hear_of_ends_asks_every_time(client: Redis) -> None:
    deaf = made(client)
    session = await deaf.sessions.begin(ANN)
    assert await deaf.sessions.touch(session, ANN)
    assert await made(client).sessions.end(session)
    assert not await deaf.sessions.touch(session, ANN)


async def test_one_whose_end_nobody_told_is_unknown_a_little_later(gateway: Gateway, client: Redis) -> None:
    session = await gateway.sessions.begin(ANN)
    assert await gateway.sessions.touch(session, ANN)
    await client.delete(session_key(session))
    async with asyncio.timeout(60):
        while await gateway.sessions.touch(session, ANN):  # noqa: ASYNC110  Nothing tells that a second is over.
            await asyncio.sleep(0.05)


async def test_what_lasts_shortly_is_asked_after_more_often(client: Redis) -> None:
    assert made(client, ttl_seconds=2).recent.seconds == pytest.approx(0.2)
    assert made(client, ttl_seconds=3600).recent.seconds == 1
