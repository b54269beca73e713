"""The last token of a context, against an engine that answers when it is told to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import EngineConnectionError
from cwm.ports.engine import Completion, Engine, Generation
from cwm.ports.kv_tier import KvTier
from cwm.services.engine_directory import EngineDirectory
from cwm.services.last_token import LastToken
from cwm.services.prefix import Prefix, fitting

IDENTITY = EngineIdentity("m", "/m", "fp-1", 8192, "0.32.0", 32, 32, "blake3")


@dataclass
class WaitingEngine:
    """``fails`` is what it raises in place of an answer."""

    answers: asyncio.Event = field(default_factory=asyncio.Event)
    fails: Exception | None = None
    fingerprint: str = "fp-1"
    asked: list[Generation] = field(default_factory=list)

    async def complete(self, generation: Generation) -> Completion:
        self.asked.append(generation)
        await self.answers.wait()
        if self.fails is not None:
            raise self.fails
        return Completion("", (1,), "length", len(generation.token_ids), 0, self.fingerprint)


def context(token_count: int, salt: str = "salt") -> Prefix:
    return Prefix(fitting(tuple(range(token_count)), IDENTITY), salt, IDENTITY)


def of(engine: WaitingEngine) -> LastToken:
    directory = EngineDirectory(
        cast("Engine", engine), cast("KvTier", None), secret=b"key", weights_digest=""
    )
    return LastToken(cast("Engine", engine), directory)


async def test_whoever_asks_waits_for_what_is_being_computed() -> None:
    engine = WaitingEngine()
    computing = of(engine)
    computing.compute(context(96))
    asking = asyncio.create_task(computing.computed(context(96)))
    await asyncio.wait([asking], timeout=0)
    assert not asking.done()
    engine.answers.set()
    assert await asking
    assert [(len(asked.token_ids), asked.max_tokens, asked.cache_salt) for asked in engine.asked] == [
        (96, 1, "salt")
    ]


async def test_whoever_stops_waiting_does_not_stop_it() -> None:
    engine = WaitingEngine()
    computing = of(engine)
    computing.compute(context(96))
    asking = asyncio.create_task(computing.computed(context(96)))
    await asyncio.wait([asking], timeout=0)
    asking.cancel()
    await asyncio.wait([asking])
    asking = asyncio.create_task(computing.computed(context(96)))
    await asyncio.wait([asking], timeout=0)
    engine.answers.set()
    assert await asking


async def test_nothing_is_asked_for_where_no_chunk_ends() -> None:
    engine = WaitingEngine()
    computing = of(engine)
    without_cache = replace(IDENTITY, chunk_size=None)
    for token_count in (31, 95, 97, 8192):
        computing.compute(context(token_count))
    computing.compute(Prefix(tuple(range(96)), "salt", without_cache))
    await computing.settle()
    assert engine.asked == []


async def test_a_context_is_asked_for_once_at_a_time() -> None:
    engine = WaitingEngine()
    engine.answers.set()
    computing = of(engine)
    computing.compute(context(96))
    computing.compute(context(96))
    computing.compute(context(96, "another"))
    await computing.settle()
    assert [asked.cache_salt for asked in engine.asked] == ["salt", "another"]


@pytest.mark.parametrize(
    "engine",
    [WaitingEngine(fails=EngineConnectionError("gone")), WaitingEngine(fingerprint="fp-2")],
    ids=["failing", "another"],
)
async def test_what_an_engine_did_not_do_or_another_did_is_not_computed(engine: WaitingEngine) -> None:
    engine.answers.set()
    computing = of(engine)
    computing.compute(context(96))
    assert not await computing.computed(context(96))


async def test_nothing_is_kept_of_what_was_computed() -> None:
    engine = WaitingEngine()
    engine.answers.set()
    computing = of(engine)
    computing.compute(context(96))
    assert await computing.computed(context(96))
    assert not await computing.computed(context(96))
