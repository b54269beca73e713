"""Contexts that end where a chunk does: the last token was sampled, and its chunk is no part of the window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from cwm.adapters.lmcache.hashes import chunk_hashes
from cwm.domain.prefix import restorable_tokens
from cwm.domain.verdict import Verification
from cwm.services.turns.sending.generate import Generated, TurnInput
from tests.live.engine import LiveEngine
from tests.live.house import AGENT, House, house

pytestmark = pytest.mark.live

LOWER_TIERS = ("redis", "disk")


@pytest.fixture
async def cwm(live_engine: LiveEngine, tmp_path: Path) -> AsyncIterator[House]:
    async with house(live_engine, tmp_path) as opened:
        yield opened


async def says(cwm: House, session: str, text: str, max_tokens: int) -> Generated:
    turn = TurnInput(text=text, max_tokens=max_tokens, sampling={"ignore_eos": True, "temperature": 0})
    return await cwm.parts.services.generate(AGENT, session, turn)


async def session_of(cwm: House, chunk: int, over: int) -> tuple[str, int]:
    """A session of ``over`` tokens more than some whole chunks; its id and how many tokens it has."""
    session = f"s_{uuid4().hex[:10]}"
    await cwm.parts.services.open_session(AGENT, session)
    first = await says(cwm, session, f"{uuid4()} once upon a time", 1)
    second = await says(cwm, session, " and then", 2 * chunk - (first.token_count + 2) % chunk + over)
    assert second.token_count % chunk == over
    return session, second.token_count


async def computed(cwm: House) -> float:
    """Prompt tokens that vLLM did not have, by its own count."""
    return (await cwm.parts.engine_side.engine.counters()).prompt_tokens_by_source["local_compute"]


@pytest.mark.parametrize("over", [0, 1])
async def test_a_freeze_has_nothing_computed_and_the_thaw_continues_token_for_token(
    cwm: House, live_engine: LiveEngine, over: int
) -> None:
    chunk = live_engine.chunk_size
    session, token_count = await session_of(cwm, chunk, over)
    before = await computed(cwm)
    frozen = await cwm.parts.services.freeze(AGENT, session, f"w-{uuid4().hex}", canary=False)
    assert await computed(cwm) - before == 1
    assert frozen.window.block_count * chunk == token_count - (over or chunk)

    resident = await cwm.parts.services.thaw(AGENT, frozen.window.name)
    uninterrupted = await says(cwm, resident.session.id, " so", 16)
    ids = await cwm.parts.base.registry.session_tokens("acme", resident.session.id)
    async with asyncio.timeout(30):
        # Deleted on its way into the cache, its block after the window's would still arrive.
        while await cwm.stored(chunk_hashes(ids[:-1], chunk)[-1:]) < len(LOWER_TIERS):
            pass
    await cwm.parts.services.end_session(AGENT, resident.session.id)
    await live_engine.forget_gpu_cache()
    thawed = await cwm.parts.services.thaw(AGENT, frozen.window.name)
    assert not thawed.partial
    assert thawed.receipt.tokens_restored == restorable_tokens(token_count, chunk)
    assert (await says(cwm, thawed.session.id, " so", 16)).text == uninterrupted.text


async def test_what_proves_a_window_leaves_nothing_behind_it_in_the_cache(
    cwm: House, live_engine: LiveEngine
) -> None:
    session, token_count = await session_of(cwm, live_engine.chunk_size, 0)
    ids = await cwm.parts.base.registry.session_tokens("acme", session)
    *whole, last = chunk_hashes(ids, live_engine.chunk_size)

    frozen = await cwm.parts.services.freeze(AGENT, session, f"w-{uuid4().hex}")
    await live_engine.forget_gpu_cache()
    thawed = await cwm.parts.services.thaw(AGENT, frozen.window.name)
    assert thawed.receipt.evidence.verification is Verification.EXACT
    assert thawed.receipt.tokens_recomputed == live_engine.chunk_size
    while await cwm.parts.engine_side.kv_tier.storing():
        pass

    assert token_count == len(ids)
    assert await cwm.stored(whole) > 0
    assert await cwm.stored([last]) == 0
