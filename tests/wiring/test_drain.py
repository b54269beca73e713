"""What a gateway that stops still does, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cwm.adapters.sql.leases import SqlLeases
from cwm.app import assemble
from cwm.domain.access import EVERY
from cwm.domain.principal import Principal
from cwm.services.context.upkeep import ContextUpkeep
from cwm.services.turns.sending.generate import TurnInput
from cwm.services.turns.sending.pass_through import PassThrough
from cwm.settings import Database, Http, Settings
from cwm.wiring.lifetime import Drain, running
from cwm.wiring.parts import Parts, build_parts
from tests.adapters.vllm.fake_vllm import Behaviour, FakeVllm, fake_vllm
from tests.services.replicas_of import HandClock
from tests.transport.llm.gateway import settings_for

ANN = Principal("acme", "ann", EVERY)
LONG = 1_000.0


@dataclass
class Watched:
    """In the place of what passes requests on: how long it was given, and what it does with the time."""

    taking: Callable[[], None] = lambda: None
    given: float | None = None
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    responses: Any = field(default_factory=lambda: SimpleNamespace(conversations=None))
    limits: Any = None
    journal: Any = None
    directory: Any = None

    async def drain(self, timeout_seconds: float) -> None:
        self.given = timeout_seconds
        self.taking()
        self.draining.set()


class FailingUpkeep(ContextUpkeep):
    def __init__(self, parts: Parts) -> None:
        super().__init__(
            parts.services.shared_context, parts.base.shared.agent_sessions, parts.base.shared.changes, LONG
        )
        self.ran = asyncio.Event()

    async def run(self) -> None:
        self.ran.set()
        raise ZeroDivisionError


def settings(folder: Path, vllm_url: str = "http://127.0.0.1:9") -> Settings:
    return Settings(
        engine=settings_for(vllm_url),
        database=Database(db_path=folder / "cwm.db"),
        http=Http(drain_seconds=LONG),
    )


def watched_parts(of: Settings, watched: Watched) -> Parts:
    parts = build_parts(of)
    side = replace(parts.engine_side, pass_through=cast("PassThrough", watched))
    return replace(parts, engine_side=side)


@asynccontextmanager
async def a_turn_that_nobody_waits_for(vllm: FakeVllm, parts: Parts) -> AsyncIterator[None]:
    await parts.services.open_session(ANN, "s")
    vllm.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN
    turn = asyncio.create_task(parts.services.generate(ANN, "s", TurnInput(text="hey")))
    await vllm.waiting.wait()
    turn.cancel()
    with suppress(asyncio.CancelledError):
        await turn
    yield


async def test_what_the_server_waited_for_connections_is_not_waited_for_again(tmp_path: Path) -> None:
    watched, of = Watched(), settings(tmp_path)
    app: Any = assemble(of, watched_parts(of, watched))
    async with app.router.lifespan_context(app):
        app.state.end_streams()
    assert watched.given is not None
    assert 0 < watched.given < LONG


async def test_all_that_is_waited_for_shares_one_grace(tmp_path: Path) -> None:
    clock = HandClock()
    drain = Drain(LONG, clock)

    def take_it_all() -> None:
        clock.seconds += LONG

    async with fake_vllm() as vllm:
        of = settings(tmp_path, vllm.url)
        watched = Watched(take_it_all)
        parts = watched_parts(of, watched)
        async with asyncio.timeout(60), running(of, parts, drain), a_turn_that_nobody_waits_for(vllm, parts):
            drain.begin()
            clock.seconds += 1
            drain.begin()
        assert watched.given == LONG - 1
        vllm.release.set()


async def test_a_gateway_that_drains_goes_on_saying_that_it_lives_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.services.replicas.BEAT_SECONDS", 0.01)
    async with fake_vllm() as vllm:
        of = settings(tmp_path, vllm.url)
        watched = Watched()
        parts = watched_parts(of, watched)
        leases, stop = SqlLeases(parts.base.database), asyncio.Event()

        async def run() -> None:
            async with (
                running(of, parts, Drain(LONG, HandClock())),
                a_turn_that_nobody_waits_for(vllm, parts),
            ):
                await stop.wait()

        gateway = asyncio.create_task(run())
        stop.set()
        async with asyncio.timeout(20):
            await watched.draining.wait()
            me = parts.base.replicas.me
            await leases.drop(f"replica:{me}", me)
            while await leases.seen(f"replica:{me}") is None:
                pass
            vllm.release.set()
            await gateway
        again = build_parts(of)
        async with again.close():
            assert await SqlLeases(again.base.database).seen(f"replica:{me}") is None


async def test_what_fails_of_its_upkeep_takes_no_running_work_along(tmp_path: Path) -> None:
    watched, of = Watched(), settings(tmp_path)
    parts = watched_parts(of, watched)
    failing = FailingUpkeep(parts)
    parts = replace(parts, agent_side=replace(parts.agent_side, context_upkeep=failing))
    with pytest.raises(ZeroDivisionError):
        async with running(of, parts, Drain(LONG, HandClock())):
            await failing.ran.wait()
    assert watched.draining.is_set()
    gone = build_parts(of)
    async with gone.close():
        assert await SqlLeases(gone.base.database).seen(f"replica:{parts.base.replicas.me}") is None
