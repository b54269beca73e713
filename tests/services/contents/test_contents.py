"""Contents in process and in the shared store: one copy, one load, and never anything else than was kept."""

from __future__ import annotations

import asyncio
import hashlib
import random
import tracemalloc
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from cwm.adapters.memory.changes import InProcessChanges
from cwm.domain.audit import Severity
from cwm.domain.eviction import Eviction
from cwm.services.contents.cache import ContentCache
from cwm.services.contents.form import digest_of, is_compressed, plain_form, stored_form
from tests.services.context_of import MEGABYTE, Replica, replica
from tests.services.replicas_of import HandClock

TEXT = b"all work and no play makes a dull context; " * 100
NOISE = random.Random(1).randbytes(5000)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(4_000_000_000.0)


@pytest.fixture
async def replicas(
    shared_store_url: str, sqlite_url: str, clock: HandClock
) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two that share a store and hear each other."""
    changes = InProcessChanges()
    async with (
        replica(shared_store_url, sqlite_url, changes, clock) as one,
        replica(shared_store_url, sqlite_url, changes, clock) as other,
    ):
        yield one, other


async def keep(one: Replica, plain: bytes, holder: str = "h", **given: Any) -> str:
    return await one.contents.keep("acme", plain, holder, given.pop("expires_at", None), **given)


async def test_what_one_replica_keeps_another_reads(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    for plain in (b"", b"x", TEXT, NOISE, TEXT * 1000):
        digest = await keep(one, plain)
        assert digest == hashlib.sha256(plain).hexdigest()
        assert await other.contents.read("acme", digest) == plain
        assert await other.contents.read("other", digest) is None


async def test_what_compresses_is_stored_compressed(replicas: tuple[Replica, Replica]) -> None:
    one, _ = replicas
    await keep(one, TEXT)
    assert await one.store.used_bytes("acme") < len(TEXT) / 10
    await keep(one, NOISE)
    assert await one.store.used_bytes("acme") > len(NOISE)


async def test_equal_contents_are_one_copy_until_the_last_lets_go(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    digest = await keep(one, NOISE, "a")
    used = await one.store.used_bytes("acme")
    assert await keep(other, NOISE, "b") == await keep(one, NOISE, "c") == digest
    assert await one.store.used_bytes("acme") == used
    for holder in "ab":
        await one.contents.let_go("acme", digest, holder)
    assert await other.contents.read("acme", digest) == NOISE
    await one.contents.let_go("acme", digest, "c")
    assert await other.contents.read("acme", digest) is None
    assert await one.contents.read("acme", digest) is None


async def test_many_that_ask_at_once_make_one_load(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    digest = await keep(one, TEXT)
    asked = await asyncio.gather(*(other.contents.read("acme", digest) for _ in range(50)))
    assert asked == [TEXT] * 50
    assert other.contents.loaded == 1
    assert await other.contents.read("acme", digest) == TEXT
    assert other.contents.loaded == 1


def cool(one: Replica) -> None:
    """All that is hot becomes warm, as when memory is short."""
    cache = one.contents.cache
    warm = len(cache) * 760 + 4_000
    cache.reserve(cache.limit_bytes - warm)
    cache.reserve(0)
    assert cache.hot == 0 < len(cache)


async def test_what_is_compressed_in_process_is_unpacked_once_for_all_who_ask_and_not_loaded(
    replicas: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = replicas
    unpacked: list[str] = []

    def counted(stored: bytes, digest: str) -> bytes | None:
        unpacked.append(digest)
        return plain_form(stored, digest)

    monkeypatch.setattr("cwm.services.contents.contents.plain_form", counted)
    texts = {await keep(one, text): text for text in (TEXT * 20, TEXT * 200)}
    cool(one)
    for digest, text in texts.items():
        asked = await asyncio.gather(*(one.contents.read("acme", digest) for _ in range(50)))
        assert asked == [text] * 50
    assert unpacked == list(texts)
    counts = one.contents.cache.counts
    assert (one.contents.loaded, counts.warm_hits, counts.misses) == (0, 2, 0)
    assert one.contents.cache.hot == 2
    assert [await one.contents.read("acme", digest) for digest in texts] == list(texts.values())
    assert (len(unpacked), counts.hits) == (2, 2)


async def test_what_was_damaged_in_process_is_loaded_from_the_store(
    replicas: tuple[Replica, Replica],
) -> None:
    one, _ = replicas
    digest = await keep(one, TEXT)
    one.contents.cache.add(("acme", digest), TEXT, b"\x01damaged", 5, 1e12)
    cool(one)
    assert await asyncio.gather(*(one.contents.read("acme", digest) for _ in range(5))) == [TEXT] * 5
    assert (one.contents.loaded, one.contents.cache.counts.warm_hits) == (1, 0)


async def test_one_that_leaves_does_not_take_the_load_along(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    digest = await keep(one, TEXT)
    first = asyncio.create_task(other.contents.read("acme", digest))
    second = asyncio.create_task(other.contents.read("acme", digest))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == TEXT
    assert first.cancelled()


async def test_what_ends_is_not_read_from_memory_either(
    replicas: tuple[Replica, Replica], clock: HandClock
) -> None:
    one, other = replicas
    digest = await keep(one, TEXT, expires_at=clock.now() + timedelta(seconds=5))
    assert await other.contents.read("acme", digest) == TEXT
    clock.seconds += 4
    await keep(one, TEXT, expires_at=clock.now() + timedelta(seconds=5))
    clock.seconds += 4
    assert await one.contents.read("acme", digest) == await other.contents.read("acme", digest) == TEXT
    clock.seconds += 4
    assert await one.contents.read("acme", digest) is await other.contents.read("acme", digest) is None


@pytest.mark.parametrize("damage", ["byte", "cut", "empty", "other"])
async def test_what_was_damaged_is_dropped_told_and_never_served(
    replicas: tuple[Replica, Replica], damage: str
) -> None:
    one, other = replicas
    digest = await keep(one, TEXT)
    good = await one.store.get("acme", digest)
    assert good is not None
    middle = len(good.stored) // 2
    bad = {
        "byte": good.stored[:middle] + bytes([good.stored[middle] ^ 1]) + good.stored[middle + 1 :],
        "cut": good.stored[:-1],
        "empty": b"",
        "other": stored_form(b"something else", 0),
    }[damage]
    await one.store.put("acme", digest, bad, "h", None, None)
    assert await other.contents.read("acme", digest) is None
    assert await one.contents.read("acme", digest) is None
    assert await one.store.get("acme", digest) is None
    (event,) = await other.audit.events("acme", 10)
    assert (event.event, event.outcome, event.severity) == ("content.drop", "CWM-4004", Severity.ERROR)
    assert event.details == {"digest": digest}
    assert 'cwm_events_total{event="content_corrupted"} 1.0' in other.meter.text()
    assert await keep(one, TEXT) == digest
    assert await other.contents.read("acme", digest) == TEXT


async def test_what_was_damaged_and_put_again_while_it_was_looked_at_is_read(
    replicas: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = replicas
    digest = await keep(one, TEXT)
    good = await one.store.get("acme", digest)
    assert good is not None
    await one.store.put("acme", digest, b"\x00damaged", "h", None, None)
    drop = other.store.drop

    async def put_again_first(tenant: str, digest: str, stored: bytes) -> bool:
        await one.store.put(tenant, digest, good.stored, "h", None, None)
        return await drop(tenant, digest, stored)

    monkeypatch.setattr(other.store, "drop", put_again_first)
    assert await other.contents.read("acme", digest) == TEXT
    assert await one.store.get("acme", digest) == good


def test_a_stored_form_is_what_it_was_or_nothing() -> None:
    for plain in (b"", b"a", TEXT, NOISE):
        for above in (0, 1024, 10**6):
            stored = stored_form(plain, above)
            assert plain_form(stored, digest_of(plain)) == plain
            assert plain_form(stored, digest_of(plain + b"x")) is None
            assert len(stored) <= len(plain) + 1
    assert not is_compressed(stored_form(TEXT, len(TEXT)))
    assert is_compressed(stored_form(TEXT, len(TEXT) - 1))
    bomb = b"\x01\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + b"\x01\x00\x00"
    assert plain_form(bomb, digest_of(b"")) is None


def held(cache: ContentCache, count: int) -> list[int]:
    return [number for number in range(count) if cache.facts(("acme", str(number))) is not None]


def fill(cache: ContentCache, count: int, size: int, *, stored: int | None = None) -> None:
    for number in range(count):
        packed = None if stored is None else bytes(stored)
        cache.add(("acme", str(number)), bytes(size), packed, number % 11, 1000.0 + number)


def test_memory_stays_under_nine_tenths_of_its_budget() -> None:
    cache = ContentCache(MEGABYTE)
    for number in range(500):
        cache.add(("acme", str(number)), bytes(random.Random(number).randrange(50_000)), None, 5, 1e12)
        assert cache.used_bytes <= 0.9 * MEGABYTE
    assert 10 < len(cache) < 500
    cache.reserve(MEGABYTE // 2)
    assert cache.used_bytes <= 0.9 * MEGABYTE
    cache.add(("acme", "huge"), bytes(MEGABYTE), None, 5, 1e12)
    assert cache.facts(("acme", "huge")) is None


def test_what_is_hot_cools_before_it_goes() -> None:
    cache = ContentCache(MEGABYTE)
    fill(cache, 40, 50_000, stored=5_000)
    assert held(cache, 40) == list(range(40))
    assert 0 < cache.hot < 20
    assert cache.plain(("acme", "0"), 0.0) is None
    assert cache.stored(("acme", "0"), 0.0) == bytes(5_000)
    assert cache.counts.evicted == 0
    fill(cache, 400, 50_000, stored=5_000)
    assert cache.counts.evicted > 0
    assert cache.used_bytes <= 0.9 * MEGABYTE


@pytest.mark.parametrize(
    ("eviction", "last"),
    [
        (Eviction.LRU, {99, 98, 97}),
        (Eviction.TTL, {99, 98, 97}),
        (Eviction.PRIORITY, {98, 87, 76}),
        (Eviction.SIZE, {0, 1, 2}),
    ],
)
def test_the_policy_can_change_while_it_is_used(eviction: Eviction, last: set[int]) -> None:
    cache = ContentCache(MEGABYTE)
    for number in range(100):
        cache.add(("acme", str(number)), bytes(5000 + number), None, number % 11, 1000.0 + number)
    cache.reconfigure(MEGABYTE, eviction)
    cache.reconfigure(30_000, eviction)
    assert last <= set(held(cache, 100))
    assert len(cache) < 6


OFTEN, SELDOM = ("acme", "often"), ("acme", "seldom")


def use(cache: ContentCache, key: tuple[str, str], uses: int) -> None:
    """Add it, and use it so often."""
    cache.add(key, bytes(1000), bytes(100), 5, 1e12)
    for _ in range(uses):
        assert cache.plain(key, 0.0) is not None


def leave_room(cache: ContentCache, size: int) -> None:
    cache.reserve(cache.limit_bytes - size)


def test_what_is_kept_for_longer_was_used_as_often_as_before() -> None:
    cache = ContentCache(MEGABYTE, Eviction.LFU)
    use(cache, OFTEN, 9)
    use(cache, SELDOM, 5)
    cache.prolong(OFTEN, 5, 2e12)
    leave_room(cache, 3_000)
    assert (cache.plain(OFTEN, 0.0), cache.plain(SELDOM, 0.0)) == (bytes(1000), None)


def test_what_cooled_was_used_as_often_as_before() -> None:
    cache = ContentCache(MEGABYTE, Eviction.LFU)
    use(cache, OFTEN, 9)
    leave_room(cache, 1_000)
    assert cache.hot == 0
    leave_room(cache, 5_000)
    use(cache, SELDOM, 5)
    leave_room(cache, 1_000)
    assert (cache.stored(OFTEN, 0.0), cache.stored(SELDOM, 0.0)) == (bytes(100), None)


def test_what_is_hot_again_was_used_as_often_as_before() -> None:
    cache = ContentCache(MEGABYTE, Eviction.LFU)
    use(cache, OFTEN, 9)
    leave_room(cache, 1_000)
    leave_room(cache, 5_000)
    use(cache, OFTEN, 0)
    use(cache, SELDOM, 5)
    leave_room(cache, 3_000)
    assert (cache.plain(OFTEN, 0.0), cache.plain(SELDOM, 0.0)) == (bytes(1000), None)


def test_how_often_something_was_used_counts_under_a_policy_that_comes_later() -> None:
    cache = ContentCache(MEGABYTE, Eviction.LRU)
    use(cache, OFTEN, 9)
    use(cache, SELDOM, 5)
    cache.reconfigure(MEGABYTE, Eviction.LFU)
    leave_room(cache, 3_000)
    assert (cache.plain(OFTEN, 0.0), cache.plain(SELDOM, 0.0)) == (bytes(1000), None)


def test_the_bytes_that_are_counted_are_the_bytes_that_are_taken() -> None:
    """Small values are the hard case: most of what they take is not theirs."""
    for size, count in ((20, 5000), (2000, 1000)):
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        cache = ContentCache(100 * MEGABYTE)
        for number in range(count):
            digest = hashlib.sha256(str(number).encode()).hexdigest()
            cache.add(("acme", digest), bytes(size), bytes(size // 2), 5, 1e12 + number)
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert 0.85 * taken < cache.used_bytes < 1.6 * taken
