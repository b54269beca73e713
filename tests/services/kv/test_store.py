"""Storing a prefix, against a cache that loses chunks on demand.

Its normal behaviour is the real cache's: the live tests freeze through it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.errors import EngineConnectionError, EngineResponseError, StorageWriteError
from cwm.ports.engine import Completion, Engine, Generation
from cwm.ports.kv_tier import KvTier, Placement, Prefetched, PrefixKey
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.prefix import Prefix
from cwm.services.kv.store import Store

pytestmark = pytest.mark.slow

IDENTITY = EngineIdentity("m", "/m", "fp-1", 8192, "0.32.0", 32, 32, "blake3")
PREFIX = Prefix(tuple(range(100)), "salt", IDENTITY)
"""Three chunks, and a token that was sampled last in a fourth."""


@dataclass
class MovingClock:
    """Each look at it takes a tenth of a second."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        self.seconds += 0.1
        return self.seconds

    def now(self) -> Any:
        raise AssertionError("storing needs no date")


@dataclass
class FlushedEngine:
    calls: list[str]
    fingerprint: str = "fp-1"

    async def complete(self, generation: Generation) -> Completion:
        if len(generation.token_ids) == 1:
            self.calls.append("ask")
        else:
            assert (generation.token_ids, generation.store_tokens) == (PREFIX.token_ids, 96)
            self.calls.append("flush")
        new = tuple(range(generation.max_tokens))
        return Completion("", new, "length", len(generation.token_ids), 0, self.fingerprint)


@dataclass
class Recorder:
    """What a freeze has to ask of the engine itself; it is done no sooner than ``until``."""

    calls: list[str]
    until: asyncio.Event | None = None
    fails: Exception | None = None

    async def __call__(self) -> str:
        if self.until is not None:
            await self.until.wait()
        self.calls.append("record")
        if self.fails is not None:
            raise self.fails
        return "a canary"


@dataclass
class LosingTier:
    """``found`` are the answers of one prefetch after another; the last one repeats, as with ``in_l1``.

    ``in_l1`` are the chunks that L1 does not let go of before it, None for an LMCache that does not tell.

    The directory tells ``tiers``. ``fails`` is what a prefetch raises.
    """

    calls: list[str]
    found: list[int]
    tiers: frozenset[Tier] = frozenset({Tier.REDIS, Tier.DISK})
    busy: int = 0
    dropped: list[PrefixKey] = field(default_factory=list)
    in_l1: list[int] | None = None
    fails: Exception | None = None

    def beside(self, _engine: str) -> LosingTier:
        return self

    read: asyncio.Event = field(default_factory=asyncio.Event)

    async def storing(self) -> bool:
        self.busy -= 1
        return self.busy >= 0

    async def drop_l1(self, prefix: PrefixKey) -> None:
        self.calls.append("drop")
        self.dropped.append(prefix)

    async def prefetch(self, prefix: PrefixKey) -> Prefetched:
        assert prefix == PREFIX.key
        self.calls.append("prefetch")
        self.read.set()
        if self.fails is not None:
            raise self.fails
        found = _next(self.found)
        loaded = None if self.in_l1 is None else {Tier.REDIS: found - _next(self.in_l1)}
        return Prefetched(found, 3, loaded)

    async def lookup(self, prefix: PrefixKey) -> list[Placement]:
        assert prefix == PREFIX.key
        return [Placement(f"{n:064x}", 1000, self.tiers) for n in range(3)]


def _next(answers: list[int]) -> int:
    return answers.pop(0) if len(answers) > 1 else answers[0]


def store(tier: LosingTier, engine: FlushedEngine | None = None) -> Store:
    engine = engine or FlushedEngine(tier.calls)
    directory = EngineDirectory(
        cast("Engine", engine), cast("KvTier", tier), secret=b"key", weights_digest=""
    )
    return Store(
        cast("Engine", engine),
        cast("KvTier", tier),
        directory,
        MovingClock(),
        timeout_seconds=5,
    )


async def test_what_its_turns_had_computed_is_read_back_without_a_flush() -> None:
    tier = LosingTier([], found=[3])
    stored, _ = await store(tier)(PREFIX)
    assert sorted(tier.calls) == ["ask", "drop", "prefetch"]
    assert [chunk.size_bytes for chunk in stored.chunks] == [1000] * 3
    assert stored.storage_tier is Tier.REDIS
    assert stored.tiers == {"disk": 3, "redis": 3}


async def test_a_window_is_durable_only_after_every_chunk_came_back_and_is_flushed_until_then() -> None:
    tier = LosingTier([], found=[0, 2, 3])
    stored, _ = await store(tier)(PREFIX)
    assert sorted(tier.calls[:3]) == ["ask", "drop", "prefetch"]
    assert tier.calls[3:] == ["flush", "drop", "prefetch"] * 2
    assert len(stored.chunks) == 3


async def test_what_is_to_be_asked_first_is_asked_while_what_was_computed_is_read_back() -> None:
    tier = LosingTier([], found=[3])
    async with asyncio.timeout(10):
        _, result = await store(tier)(PREFIX, Recorder(tier.calls, until=tier.read))
    assert result == "a canary"
    assert sorted(tier.calls) == ["drop", "prefetch", "record"], "the engine is asked for nothing else"


async def test_what_was_asked_first_has_flushed_what_was_not_there() -> None:
    tier = LosingTier([], found=[0, 3])
    await store(tier)(PREFIX, Recorder(tier.calls))
    assert sorted(tier.calls[:3]) == ["drop", "prefetch", "record"]
    assert tier.calls[3:] == ["drop", "prefetch"]


async def test_what_is_asked_first_is_asked_once_and_its_result_comes_back() -> None:
    tier = LosingTier([], found=[0, 0, 3])
    _, result = await store(tier)(PREFIX, Recorder(tier.calls))
    assert result == "a canary"
    assert tier.calls.count("record") == 1
    assert tier.calls[3:] == ["drop", "prefetch", "flush", "drop", "prefetch"]


async def test_what_was_asked_first_and_fails_ends_it() -> None:
    tier = LosingTier([], found=[3])
    with pytest.raises(EngineConnectionError, match="gone"):
        await store(tier)(PREFIX, Recorder(tier.calls, fails=EngineConnectionError("gone")))


async def test_a_cache_that_fails_while_the_engine_is_asked_is_told_once_that_has_answered() -> None:
    tier = LosingTier([], found=[3], fails=EngineConnectionError("gone"))
    with pytest.raises(EngineConnectionError, match="gone"):
        await store(tier)(PREFIX)
    assert "ask" in tier.calls


async def test_an_engine_that_changed_is_noticed_however_little_is_asked_of_it() -> None:
    tier = LosingTier([], found=[3])
    with pytest.raises(EngineResponseError, match="changed"):
        await store(tier, FlushedEngine(tier.calls, fingerprint="fp-2"))(PREFIX)


async def test_chunks_that_never_come_back_are_told_after_the_timeout() -> None:
    tier = LosingTier([], found=[2])
    with pytest.raises(StorageWriteError, match="Only 2 of 3") as refused:
        await store(tier)(PREFIX)
    assert refused.value.context == {"blocks_found": 2, "blocks_total": 3}
    assert tier.calls.count("flush") > 1


async def test_l1_is_dropped_only_when_nothing_is_being_written_any_more() -> None:
    tier = LosingTier([], found=[3], busy=5)
    await store(tier)(PREFIX)
    assert tier.busy < 0
    assert sorted(tier.calls) == ["ask", "drop", "prefetch"]


async def test_a_directory_that_lags_does_not_decide_whether_a_window_is_stored() -> None:
    tier = LosingTier([], found=[3], tiers=frozenset({Tier.DISK}))
    stored, _ = await store(tier)(PREFIX)
    assert stored.storage_tier is Tier.DISK
    assert len(stored.chunks) == 3


@pytest.mark.parametrize("token_count", [1, 31, 32])
async def test_a_prefix_whose_kv_fills_no_chunk_asks_nothing_of_the_engine(token_count: int) -> None:
    tier = LosingTier([], found=[3])
    short = Prefix(tuple(range(token_count)), "salt", IDENTITY)
    stored, result = await store(tier)(short, Recorder(tier.calls))
    assert (stored.chunks, result) == ((), None)
    assert tier.calls == []


async def test_what_l1_did_not_let_go_of_proves_nothing_and_is_read_back_again() -> None:
    tier = LosingTier([], found=[3], in_l1=[3, 1, 0])
    stored, _ = await store(tier)(PREFIX)
    assert sorted(tier.calls) == ["ask", *["drop"] * 3, *["prefetch"] * 3]
    assert stored.storage_tier is Tier.REDIS


async def test_chunks_that_only_l1_has_are_not_stored() -> None:
    tier = LosingTier([], found=[3], in_l1=[1], tiers=frozenset({Tier.CPU}))
    with pytest.raises(StorageWriteError, match="Only 2 of 3"):
        await store(tier)(PREFIX)


async def test_of_what_l1_never_lets_go_of_the_directory_decides() -> None:
    tier = LosingTier([], found=[3], in_l1=[1], tiers=frozenset({Tier.CPU, Tier.REDIS}))
    stored, _ = await store(tier)(PREFIX)
    assert sorted(tier.calls) == ["ask", *["drop"] * 3, *["prefetch"] * 3]
    assert stored.storage_tier is Tier.REDIS
