"""Replaying a canary on an engine that takes fewer tokens than the one that sang it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from cwm.domain.canary import Canary, Verification
from cwm.domain.engine import EngineIdentity
from cwm.ports.engine import Completion, Engine, Generation
from cwm.services.kv.prefix import Prefix
from cwm.services.kv.verify import Verify
from tests.contracts.nouns import IDENTITY, IDS

LIKELIEST = {1: -0.1, 2: -2.5}
SUNG = Canary((1,) * 8, (LIKELIEST,) * 8)


@dataclass
class SingingEngine:
    """Sings the canary for as long as there is room in it, once it may."""

    max_model_len: int
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, request: Generation) -> Completion:
        self.asked.set()
        await self.may.wait()
        length = min(request.max_tokens, self.max_model_len - len(request.token_ids))
        prompt = len(request.token_ids)
        return Completion("", (1,) * length, "length", prompt, prompt, "fp-1", top=(LIKELIEST,) * length)


def engine_of(max_model_len: int) -> EngineIdentity:
    return replace(IDENTITY, max_model_len=max_model_len)


def verify(max_model_len: int, *, waits: bool = False) -> tuple[Verify, SingingEngine]:
    engine = SingingEngine(max_model_len)
    if not waits:
        engine.may.set()
    return Verify(cast("Engine", engine), 8, 0.1), engine


@pytest.mark.parametrize(("room", "compared"), [(8, 8), (3, 3), (1, 1)])
async def test_a_canary_is_compared_as_far_as_the_engine_has_room_for_it(room: int, compared: int) -> None:
    size = len(IDS) + room
    evidence = await verify(size)[0].replay(Prefix(IDS, "salt", engine_of(size)), SUNG)
    assert (evidence.verification, evidence.tokens_compared) == (Verification.EXACT, compared)


async def test_what_is_sung_otherwise_is_still_a_mismatch_where_there_is_less_room() -> None:
    size = len(IDS) + 3
    other = Canary((2, *SUNG.token_ids[1:]), ({2: -0.1, 1: -2.5}, *SUNG.top[1:]))
    evidence = await verify(size)[0].replay(Prefix(IDS, "salt", engine_of(size)), other)
    assert evidence.verification is Verification.MISMATCH


async def test_a_replay_that_nobody_waits_for_any_more_is_waited_for_at_the_end() -> None:
    verifying, engine = verify(8192, waits=True)
    caller = asyncio.create_task(verifying.replay(Prefix(IDS, "salt", IDENTITY), SUNG))
    await engine.asked.wait()
    caller.cancel()
    settled = asyncio.create_task(verifying.settle())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not settled.done()
    engine.may.set()
    await settled
