"""Which agent sessions a process holds: against a model, and what a thousand of them leave behind."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from starlette.requests import Request
from starlette.responses import Response

from cwm.adapters.upstream.http import _IDLE_CONNECTIONS
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import TooManyAgentSessionsError
from cwm.domain.upstream import OfferKind
from cwm.services.agents.agents import Agents
from cwm.services.agents.context_manager import ContextManager
from tests.adapters.upstream.bad_server import bad_server
from tests.adapters.upstream.programs import open_files, processes_with
from tests.adapters.upstream.programs import spec as program
from tests.eventually import eventually
from tests.services.replicas_of import ANN, Replica, Shared, replica
from tests.transport.mcp.upstream_hosts import hosted

TTL = 60
LIMIT = 3
NAMES = st.sampled_from([None, "a", "b", "c", "d", "e"])


class AgentsAgainstModel(RuleBasedStateMachine):
    """The model: who is held, in the order of their last use, and when that was."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.shared = Shared()
        self.agents = self.runner.run(self._agents())
        self.began, self.ended = list[str](), list[str]()
        self.model: OrderedDict[str | None, float] = OrderedDict()
        self.busy: dict[str | None, AbstractAsyncContextManager[ContextManager]] = {}

    async def _agents(self) -> Agents:
        agents = Agents(
            self.shared.store, self.shared.changes, self.shared.clock, ttl_seconds=TTL, limit=LIMIT
        )

        async def began(held: ContextManager) -> None:
            self.began.append(held.key)

        async def ended(held: ContextManager) -> None:
            self.ended.append(held.key)

        agents.at_start(began)
        agents.at_end(ended)
        return agents

    def _used(self, name: str | None) -> None:
        self.model[name] = self.shared.clock.seconds
        self.model.move_to_end(name)

    async def _get(self, name: str | None) -> ContextManager:
        return await self.agents.get(ANN, name)

    @rule(name=NAMES)
    def get(self, name: str | None) -> None:
        if name not in self.model and len(self.model) == LIMIT:
            idle = [each for each in self.model if each not in self.busy]
            if not idle:
                with pytest.raises(TooManyAgentSessionsError):
                    self.runner.run(self._get(name))
                return
            del self.model[idle[0]]
        held = self.runner.run(self._get(name))
        assert (held.principal, held.agent_session) == (ANN, name)
        self._used(name)

    @precondition(lambda self: self.model.keys() - self.busy.keys())
    @rule(data=st.data())
    def begin_to_serve(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([each for each in self.model if each not in self.busy]))
        self.busy[name] = self.runner.run(self._get(name)).serving()
        self._used(name)
        self.runner.run(self._enter(name))

    async def _enter(self, name: str | None) -> None:
        await self.busy[name].__aenter__()

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def end_to_serve(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.busy)))
        self.runner.run(self._exit(name))
        if name in self.model:
            self._used(name)

    async def _exit(self, name: str | None) -> None:
        await self.busy.pop(name).__aexit__(None, None, None)

    @rule(seconds=st.sampled_from([1, 30, 61]))
    def wait(self, seconds: float) -> None:
        self.shared.clock.seconds += seconds
        self.runner.run(self._close_idle())
        for name, used_at in list(self.model.items()):
            if used_at <= self.shared.clock.seconds - TTL and name not in self.busy:
                del self.model[name]

    async def _close_idle(self) -> None:
        self.agents.close_idle()

    @invariant()
    def what_is_held_is_what_should_be(self) -> None:
        assert [held.agent_session for held in self.agents] == list(self.model)
        assert len(self.agents) == len(self.model) <= LIMIT

    def teardown(self) -> None:
        for name in list(self.busy):
            self.runner.run(self._exit(name))
        self.runner.run(self.agents.aclose())
        assert sorted(self.began) == sorted(self.ended)
        self.runner.close()


TestAgentsAgainstModel = AgentsAgainstModel.TestCase


async def test_one_that_cannot_begin_is_not_held_and_the_next_request_tries_again() -> None:
    shared, failures = Shared(), [ValueError("not now")]
    async with replica(shared, []) as one:

        async def begin(_: ContextManager) -> None:
            if failures:
                raise failures.pop()

        one.agents.at_start(begin)
        with pytest.raises(ValueError, match="not now"):
            await one.agents.get(ANN, "a")
        assert len(one.agents) == 0
        await one.agents.get(ANN, "a")
        assert len(one.agents) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stateless", [True, False])
async def test_one_that_listens_makes_no_room_for_others(*, stateless: bool) -> None:
    shared, told = Shared(), list[Change]()
    shared.changes.subscribe(told.append)
    uri = "notes://notes/today"
    async with (
        hosted(legacy=True) as host,
        replica(shared, [host.spec("notes", stateless=stateless)], limit=2) as one,
    ):
        await one.upstreams.listening.watch(ANN, None, uri)
        for _ in range(3):
            await one.agents.get(ANN, await shared.store.begin(ANN))
        assert one.agents.held(ANN, None) is not None
        async with asyncio.timeout(60):
            while ChangeKind.RESOURCE not in {each.kind for each in told}:
                await one.call(await one.caller(None), "notes_touch")
        await one.upstreams.listening.unwatch(ANN, None, uri)
        await one.agents.get(ANN, await shared.store.begin(ANN))
        await one.agents.get(ANN, await shared.store.begin(ANN))
        assert one.agents.held(ANN, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("waits", ["to call", "to listen"])
async def test_one_that_waits_for_an_upstream_to_connect_makes_no_room_for_others(waits: str) -> None:
    shared = Shared()
    async with bad_server() as server:

        async def greet(_: Request, message: dict[str, Any]) -> Response:
            server.began.set()
            await server.go_on.wait()
            return server.greeting(message)

        server.on["initialize"] = greet
        async with replica(shared, [server.spec()], limit=1) as one:
            waiting: asyncio.Task[Any]
            if waits == "to call":
                waiting = asyncio.create_task(one.call(await one.caller(None), "bad_do"))
            else:
                waiting = asyncio.create_task(one.upstreams.listening.watch(ANN, None, "bad://bad/today"))
            await server.began.wait()
            other = await shared.store.begin(ANN)
            with pytest.raises(TooManyAgentSessionsError):
                await one.agents.get(ANN, other)
            server.go_on.set()
            assert await waiting == ("done" if waits == "to call" else None)
            if waits == "to call":
                await one.agents.get(ANN, other)
                assert one.agents.held(ANN, None) is None


async def thousand(one: Replica, shared: Shared, tool: str, count: int) -> AsyncIterator[str]:
    """Ids of agent sessions that have called an upstream, a few at a time."""
    for _ in range(count // 20):
        ids = [await shared.store.begin(ANN) for _ in range(20)]
        callers = [await one.caller(handle) for handle in ids]
        assert await asyncio.gather(*(one.call(caller, tool) for caller in callers)) == ["done"] * 20
        for handle in ids:
            yield handle


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ended", "idle", "limit"])
async def test_a_thousand_agent_sessions_leave_nothing_at_an_upstream(how: str) -> None:
    shared = Shared()
    async with bad_server() as server:
        limit = 20 if how == "limit" else 10_000
        async with replica(shared, [server.spec()], limit=limit) as one:
            await one.upstreams.offering(await one.caller(None), OfferKind.TOOLS)
            tasks, files = len(asyncio.all_tasks()), open_files()
            ids = [handle async for handle in thousand(one, shared, "bad_do", 1000)]
            assert len(server.sessions) == 1001
            if how == "idle":
                shared.clock.seconds += 61
                one.agents.close_idle()
            else:
                for handle in ids:
                    await one.agents.end(ANN, handle)
            await one.agents.settled()
            assert len(one.agents) == (1 if how == "ended" else 0)
            assert len(server.sessions) == 1
            await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
            # At most the idle connections of the pool are left, each with its other end in this process.
            await eventually(lambda: open_files() <= files + 2 * _IDLE_CONNECTIONS)
            assert len(shared.store) == 0  # type: ignore[arg-type]
    assert server.sessions == set()


@pytest.mark.slow
async def test_a_thousand_agent_sessions_leave_no_program_running() -> None:
    shared, marker = Shared(), uuid4().hex
    before = open_files()
    async with replica(shared, [program("serve()", env={"MARKER": marker})], limit=20) as one:
        ids = [handle async for handle in thousand(one, shared, "bad_do", 1000)]
        await eventually(lambda: len(processes_with(marker)) == 21)
        for handle in ids[-10:]:
            await one.agents.end(ANN, handle)
        await eventually(lambda: len(processes_with(marker)) == 11)
        shared.clock.seconds += 61
        one.agents.close_idle()
        await eventually(lambda: len(processes_with(marker)) == 1)
        assert len(one.agents) == 0
    assert processes_with(marker) == []
    # The loop closes the pipes of a program that has ended in its own time.
    await eventually(lambda: open_files() == before)
