"""A turn whose last token completes a chunk leaves all of that chunk computed, on the real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from cwm.adapters.lmcache.hashes import chunk_hashes
from cwm.domain.prefix import full_chunks
from cwm.services.generate import Generated, TurnInput
from tests.live.conftest import LiveEngine, LiveGateway
from tests.live.house import AGENT, House, house
from tests.live.talk import talk, words

pytestmark = pytest.mark.live


@pytest.fixture
async def cwm(live_engine: LiveEngine, tmp_path: Path) -> AsyncIterator[House]:
    async with house(live_engine, tmp_path) as opened:
        yield opened


async def generated(cwm: House, session: str, text: str, max_tokens: int) -> Generated:
    turn = TurnInput(text=text, max_tokens=max_tokens, sampling={"ignore_eos": True})
    return await cwm.parts.services.generate(AGENT, session, turn)


async def test_the_last_chunk_of_a_turn_taken_over_http_is_stored_before_anyone_asks_for_it(
    gateway: LiveGateway, live_engine: LiveEngine, cwm: House
) -> None:
    async with talk(gateway.url, gateway.model) as agent:
        _, ids = await agent.fill(words(5 * live_engine.chunk_size - 8))
    assert len(ids) == 5 * live_engine.chunk_size
    last = chunk_hashes(tuple(ids), live_engine.chunk_size)[-1]
    async with asyncio.timeout(60):
        while not await cwm.stored([last]):
            pass


@pytest.mark.parametrize("over", [0, 1])
async def test_a_turn_taken_over_mcp_has_its_last_token_computed_only_where_it_completes_a_chunk(
    cwm: House, live_engine: LiveEngine, over: int
) -> None:
    chunk, session = live_engine.chunk_size, f"s_{uuid4().hex[:10]}"
    await cwm.parts.services.open_session(AGENT, session)
    first = await generated(cwm, session, f"{uuid4()} once upon a time", 1)
    second = await generated(cwm, session, " and then", 2 * chunk - (first.token_count + 2) % chunk + over)
    whole = second.token_count // chunk * chunk
    assert (second.token_count - whole) == over

    await cwm.parts.last_token.settle()
    third = await generated(cwm, session, " so", 1)

    assert third.cached_tokens == whole
    assert full_chunks(second.token_count - 1, chunk) == whole // chunk - (0 if over else 1)
