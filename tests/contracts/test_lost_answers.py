"""What the shared store did although its answer was lost is not done, nor refused, a second time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import redis.asyncio as redis

from cwm.adapters.redis.agents.agent_sessions import RedisAgentSessions
from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.context.contents import RedisContentStore
from cwm.adapters.redis.context.index import RedisContextIndex
from cwm.adapters.redis.context.results import RedisResultRecords
from cwm.domain.principal import Principal
from cwm.domain.shared_context import Write, scope_of
from cwm.ports.context_index import Bytes, Written
from tests.contracts.test_result_records import a_result
from tests.lost_answers import losing_one_answer

pytestmark = pytest.mark.slow

SCOPE = scope_of("acme", "s1", "tenant")
KEEP = 1000


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.Redis]:
    """Loses the answer to the first script that it runs."""
    async with losing_one_answer(redis_url, b"EVALSHA") as url:
        client = connect(url)
        yield client
        await client.aclose()


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[redis.Redis]:
    """Of a replica whose answers all arrive."""
    client = connect(redis_url)
    yield client
    await client.aclose()


async def written(client: redis.Redis, write: Write) -> Written:
    new = None if write.digest is None else Bytes(write.digest, write.digest.encode())
    told = await RedisContextIndex(client).write(SCOPE, [write], "ann", new=new, keep=KEEP)
    assert told is not None
    return told


A_VALUE = Write("k", "d", 1)


@pytest.mark.parametrize("write", [A_VALUE, replace(A_VALUE, immutable=True), replace(A_VALUE, if_version=0)])
async def test_a_write_is_done_once_and_told_as_done(
    client: redis.Redis, other: redis.Redis, write: Write
) -> None:
    told = await written(client, write)
    delta = await RedisContextIndex(other).since(SCOPE, 0)
    assert (told.head.version, told.entries) == (1, delta.entries)
    assert delta.head.version == 1
    assert await RedisContentStore(other).get("acme", "d") is not None


async def test_a_write_at_a_version_is_told_as_done(client: redis.Redis) -> None:
    told = await RedisContextIndex(client).write(
        SCOPE, [A_VALUE], "ann", new=Bytes("d", b"d"), at=0, keep=KEEP
    )
    assert told is not None
    assert told.head.version == 1


async def test_what_was_deleted_is_told(client: redis.Redis, other: redis.Redis) -> None:
    await written(other, A_VALUE)
    told = await written(client, Write("k"))
    assert [(entry.key, entry.version, entry.digest) for entry in told.entries] == [("k", 2, None)]


async def test_a_snapshot_is_taken_once_and_the_oldest_make_room_once(
    client: redis.Redis, other: redis.Redis
) -> None:
    await written(other, A_VALUE)
    for label in ("a", "b"):
        await RedisContextIndex(other).take_snapshot(SCOPE, label, "ann", 2)
    snapshot, dropped = await RedisContextIndex(client).take_snapshot(SCOPE, "c", "ann", 2)
    assert (snapshot.label, snapshot.version, dropped) == ("c", 1, ["a"])
    assert [each.label for each in await RedisContextIndex(other).snapshots(SCOPE)] == ["b", "c"]


async def test_a_result_that_fills_its_owners_quota_is_kept(client: redis.Redis, other: redis.Redis) -> None:
    result = a_result(size=100)
    assert await RedisResultRecords(client).keep(result, 100)
    assert await RedisResultRecords(other).find("acme", result.handle) == result


async def test_an_agent_session_that_ended_is_told_as_ended_by_whoever_ended_it(
    redis_url: str, other: redis.Redis
) -> None:
    sessions = RedisAgentSessions(other, 60)
    session = await sessions.begin(Principal("acme", "ann"))
    async with losing_one_answer(redis_url, session.encode()) as url:
        client = connect(url)
        assert await RedisAgentSessions(client, 60).end(session)
        await client.aclose()
    assert not await sessions.alive(session)
    assert not await sessions.end(session)
