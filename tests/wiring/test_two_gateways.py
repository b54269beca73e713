"""Two whole gateways, each with its own directory and connections, over one Postgres and one Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.domain.access import EVERY
from cwm.domain.errors import SessionMovingError
from cwm.domain.principal import Principal
from cwm.services.moves.move import Moved
from cwm.services.turns.sending.generate import TurnInput
from cwm.settings import load
from cwm.wiring.lifetime import Drain, running
from cwm.wiring.parts import Parts, build_parts
from tests.adapters.vllm.fake_vllm import FakeVllm, fake_vllm

pytestmark = pytest.mark.slow

ANN = Principal("acme", "ann", EVERY)
SESSIONS = tuple(f"s{number}" for number in range(8))


@dataclass(frozen=True, slots=True)
class Pair:
    a: Parts
    b: Parts
    engines: dict[str, FakeVllm]

    async def says(self, through: Parts, session_id: str) -> None:
        await through.services.generate(ANN, session_id, TurnInput(text="Hello.", max_tokens=2))

    async def begins(self, through: Parts, session_id: str) -> str:
        """A session of one turn; its engine."""
        await through.services.open_session(ANN, session_id)
        await self.says(through, session_id)
        return await self.engine_of(through, session_id)

    async def engine_of(self, seen_by: Parts, session_id: str) -> str:
        session = await seen_by.base.registry.session("acme", session_id)
        assert session is not None
        assert session.moving_until is None
        return session.engine or ""

    def turns(self) -> dict[str, int]:
        return {name: len(engine.turns) for name, engine in self.engines.items()}


@pytest.fixture
async def pair(postgres_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(fake_vllm()) for name in ("one", "two")}
        config = tmp_path / "cwm.yaml"
        entries = "".join(
            f"  {name}: {{url: '{each.url}', lmcache: none}}\n" for name, each in engines.items()
        )
        config.write_text(f"engines:\n{entries}")
        environ = {
            "CWM_DATABASE_URL": postgres_url,
            "CWM_SHARED_STORE_URL": redis_url,
            "CWM_SECRET": "a test's secret",
            "CWM_COORDINATOR_URL": "none",
            "CWM_TENANT": "acme",
        }
        gateways = []
        for _ in range(2):
            settings = load(environ, config)
            parts = build_parts(settings)
            await stack.enter_async_context(running(settings, parts, Drain(5, SystemClock())))
            gateways.append(parts)
        a, b = gateways
        yield Pair(a, b, engines)


async def test_a_session_stays_on_one_engine_whichever_gateway_takes_its_turns(pair: Pair) -> None:
    placed = {name: await pair.begins(pair.a, name) for name in SESSIONS}
    assert set(placed.values()) == {"one", "two"}
    before = pair.turns()
    for name in SESSIONS:
        for through in (pair.b, pair.a):
            await pair.says(through, name)
    assert {name: await pair.engine_of(pair.b, name) for name in SESSIONS} == placed
    per_engine = {name: 3 * count for name, count in before.items()}
    assert pair.turns() == per_engine


async def test_of_first_turns_at_once_through_both_gateways_one_decides_where_the_session_is(
    pair: Pair,
) -> None:
    for name in SESSIONS:
        await pair.a.services.open_session(ANN, name)
        await asyncio.gather(pair.says(pair.a, name), pair.says(pair.b, name), return_exceptions=True)
        place = await pair.engine_of(pair.a, name)
        before = pair.turns()[place]
        for through in (pair.a, pair.b):
            await pair.says(through, name)
        assert pair.turns()[place] == before + 2


async def test_of_moves_of_one_session_at_once_one_is_made(pair: Pair) -> None:
    for name in SESSIONS:
        source = await pair.begins(pair.a, name)
        target = "two" if source == "one" else "one"
        answers = await asyncio.gather(
            *(each.services.move(ANN, name, target) for each in (pair.a, pair.b)), return_exceptions=True
        )
        moves = [each for each in answers if isinstance(each, Moved) and each.token_count]
        refused = [each for each in answers if isinstance(each, SessionMovingError)]
        late = [each for each in answers if isinstance(each, Moved) and not each.token_count]
        assert (len(moves), len(refused) + len(late)) == (1, 1)
        assert await pair.engine_of(pair.b, name) == target


async def test_a_drain_through_one_gateway_holds_for_both_and_outlasts_it(pair: Pair) -> None:
    for name in SESSIONS[:4]:
        await pair.begins(pair.a, name)
    drained = await pair.a.services.drain(ANN, "one")
    assert (drained.moved, drained.stayed) == (2, ())
    for name in SESSIONS[4:]:
        assert await pair.begins(pair.b, name) == "two"
    one, two = await pair.b.services.survey(ANN)
    assert (one.draining_since, one.sessions, two.sessions) == (drained.since, 0, len(SESSIONS))
    await pair.b.services.drain.undo(ANN, "one")
    assert await pair.begins(pair.a, "after") == "one"
