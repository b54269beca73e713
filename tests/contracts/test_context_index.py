"""What every index of shared context owes: each write is one step, and each state can be read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.context.contents import RedisContentStore
from cwm.adapters.redis.context.index import RedisContextIndex
from cwm.adapters.sql.context.contents import SqlContentStore
from cwm.adapters.sql.context.index import SqlContextIndex
from cwm.adapters.sql.database import open_database
from cwm.domain.errors import ContextConflictError, StorageQuotaExceededError
from cwm.domain.shared_context import ContextScope, Entry, Head, Write, scope_of
from cwm.ports.content_store import ContentStore
from cwm.ports.context_index import Bytes, ContextIndex, Written
from tests.services.replicas_of import HandClock

pytestmark = pytest.mark.slow

TENANT = scope_of("acme", "s1", "tenant")
WORKSPACE = scope_of("acme", "s1", "workspace:build")
PRIVATE = scope_of("acme", "s1", "session")
KEEP = 1000
CLEANED_UP_AT = 16


@dataclass(frozen=True, slots=True)
class Stores:
    """An index with the contents that it holds, on a clock that is moved by hand."""

    index: ContextIndex
    contents: ContentStore
    clock: HandClock

    async def set(self, key: str, digest: str = "d", scope: ContextScope = TENANT, **given: Any) -> Written:
        keep, new = given.pop("keep", KEEP), Bytes(digest, digest.encode(), given.pop("quota", None))
        write = Write(key, digest, len(digest), **given)
        written = await self.index.write(scope, [write], "ann", new=new, keep=keep)
        assert written is not None
        return written

    async def delete(self, key: str, scope: ContextScope = TENANT, **given: Any) -> Written:
        written = await self.index.write(scope, [Write(key, **given)], "ann", keep=KEEP)
        assert written is not None
        return written

    async def now(self, scope: ContextScope = TENANT) -> dict[str, str | None]:
        delta = await self.index.since(scope, -1)
        assert delta.whole
        return {e.key: e.digest for e in delta.entries if e.is_there(delta.head.now)}

    async def at(self, version: int, scope: ContextScope = TENANT) -> dict[str, str | None]:
        return {e.key: e.digest for e in await self.index.state(scope, version)}

    async def is_kept(self, digest: str) -> bool:
        return await self.contents.get("acme", digest) is not None


@pytest.fixture
async def stores(shared_store_url: str) -> AsyncIterator[Stores]:
    clock = HandClock(4_000_000_000.0)
    if shared_store_url.startswith("redis"):
        client = connect(shared_store_url)
        yield Stores(RedisContextIndex(client, clock), RedisContentStore(client, clock), clock)
        await client.aclose()
        return
    database = open_database(shared_store_url)
    yield Stores(SqlContextIndex(database, clock), SqlContentStore(database, clock), clock)
    await database.dispose()


async def test_a_scope_that_nobody_wrote_is_at_version_0(stores: Stores) -> None:
    assert await stores.index.head(TENANT) == Head(0, 0, stores.clock.now())
    assert await stores.now() == {}
    assert await stores.index.past(TENANT, "k", 0) is None
    assert await stores.index.snapshots(TENANT) == []


async def test_an_entry_comes_back_as_it_was_written(stores: Stores) -> None:
    key = 'ä/b: "c" %_\\'
    written = await stores.set(key, "d1", priority=9, immutable=True, ttl_ms=60_000)
    expected = Entry(
        key=key,
        version=1,
        digest="d1",
        size=2,
        priority=9,
        immutable=True,
        author="ann",
        written_at=stores.clock.now(),
        expires_at=stores.clock.now() + timedelta(minutes=1),
    )
    assert written == Written(Head(1, 0, stores.clock.now()), (expected,))
    assert (await stores.index.since(TENANT, 0)).entries == (expected,)
    assert await stores.index.past(TENANT, key, 1) == expected
    assert await stores.index.state(TENANT, 1) == [expected]


async def test_scopes_and_tenants_know_nothing_of_each_other(stores: Stores) -> None:
    scopes = [TENANT, WORKSPACE, PRIVATE, scope_of("acme", "s2", "session"), scope_of("b", "s1", "tenant")]
    for number, scope in enumerate(scopes):
        await stores.set("k", f"d{number}", scope)
    for number, scope in enumerate(scopes):
        assert await stores.now(scope) == {"k": f"d{number}"}
        assert (await stores.index.head(scope)).version == 1


async def test_every_write_is_a_version_and_what_changed_since_one_is_told(stores: Stores) -> None:
    await stores.set("a", "d1")
    await stores.set("b", "d2")
    await stores.set("a", "d3")
    await stores.delete("b")
    delta = await stores.index.since(TENANT, 2)
    assert (delta.head.version, delta.whole) == (4, False)
    assert {(e.key, e.version, e.digest) for e in delta.entries} == {("a", 3, "d3"), ("b", 4, None)}
    assert (await stores.index.since(TENANT, 4)).entries == ()
    assert (await stores.index.since(TENANT, 9)).whole


async def test_deleting_what_is_not_there_is_no_version(stores: Stores) -> None:
    assert (await stores.delete("k")).entries == ()
    await stores.set("k")
    assert len((await stores.delete("k")).entries) == 1
    assert (await stores.delete("k")).entries == ()
    assert (await stores.index.head(TENANT)).version == 2


async def test_a_write_for_another_version_is_refused_with_the_current_one(stores: Stores) -> None:
    await stores.set("k", "d1", if_version=0)
    await stores.set("other")
    for write in (stores.set("k", "d2", if_version=0), stores.set("k", "d2", if_version=2)):
        with pytest.raises(ContextConflictError) as refused:
            await write
        assert refused.value.context == {"key": "k", "current_version": 1, "reason": "version"}
    with pytest.raises(ContextConflictError):
        await stores.delete("k", if_version=2)
    await stores.set("k", "d3", if_version=1)
    await stores.delete("k", if_version=3)
    with pytest.raises(ContextConflictError) as refused:
        await stores.set("k", "d4", if_version=3)
    assert refused.value.context["current_version"] == 0
    await stores.set("k", "d4", if_version=0)


async def test_an_immutable_key_stays_what_it_is(stores: Stores) -> None:
    await stores.set("k", "d1", immutable=True)
    for write in (stores.set("k", "d1"), stores.set("k", "d2", if_version=1), stores.delete("k")):
        with pytest.raises(ContextConflictError) as refused:
            await write
        assert refused.value.context == {"key": "k", "current_version": 1, "reason": "immutable"}
    assert await stores.now() == {"k": "d1"}


async def test_of_many_that_compare_and_set_at_once_one_wins_each_round(stores: Stores) -> None:
    async def attempt(number: int, version: int) -> int:
        try:
            await stores.set("k", f"d{number}", if_version=version)
        except ContextConflictError:
            return 0
        return 1

    for version in range(3):
        assert sum(await asyncio.gather(*(attempt(number, version) for number in range(10)))) == 1


async def test_several_keys_are_one_version_or_nothing(stores: Stores) -> None:
    await stores.set("a", "d1")
    await stores.contents.put("acme", "d2", b"x", "writer", None, None)
    both = [Write("b", "d2", 1), Write("a", "d2", 1, if_version=7)]
    with pytest.raises(ContextConflictError):
        await stores.index.write(TENANT, both, "ann", keep=KEEP)
    assert await stores.now() == {"a": "d1"}
    written = await stores.index.write(TENANT, [Write("a"), both[0]], "ann", keep=KEEP)
    assert written is not None
    assert {(e.key, e.version) for e in written.entries} == {("a", 2), ("b", 2)}
    assert await stores.now() == {"b": "d2"}


async def test_what_a_refused_write_brought_along_is_not_kept(stores: Stores) -> None:
    await stores.set("k", "d1", immutable=True)
    with pytest.raises(ContextConflictError):
        await stores.set("k", "d2")
    assert not await stores.is_kept("d2")
    assert await stores.contents.used_bytes("acme") == 2


async def test_over_the_quota_nothing_is_written_and_what_is_there_needs_no_room(stores: Stores) -> None:
    await stores.set("k", "d1")
    with pytest.raises(StorageQuotaExceededError) as refused:
        await stores.set("k", "long", quota=5)
    assert refused.value.context == {"used_bytes": 2, "asked_bytes": 4, "quota_bytes": 5}
    assert (await stores.index.head(TENANT)).version == 1
    assert not await stores.is_kept("long")
    await stores.set("other", "d1", quota=2)
    assert await stores.now() == {"k": "d1", "other": "d1"}


async def test_what_a_key_is_set_to_again_outlives_the_clean_up_of_that_write(stores: Stores) -> None:
    await stores.set("k", "d", keep=1)
    while (await stores.set("k", "other", keep=1)).head.version < CLEANED_UP_AT - 1:
        pass
    written = await stores.set("k", "d", keep=1)
    assert written.head.version == CLEANED_UP_AT
    assert await stores.is_kept("d")


async def test_a_write_at_a_version_comes_too_late_for_another(stores: Stores) -> None:
    await stores.set("a", "d1")
    assert await stores.index.write(TENANT, [Write("a")], "ann", at=0, keep=KEEP) is None
    assert await stores.now() == {"a": "d1"}
    assert await stores.index.write(TENANT, [Write("a")], "ann", at=1, keep=KEEP) is not None


async def test_every_state_of_the_past_can_be_read(stores: Stores) -> None:
    await stores.set("a", "d1")
    await stores.set("b", "d2")
    await stores.delete("a")
    await stores.set("a", "d3")
    states: list[dict[str, str | None]] = [
        {},
        {"a": "d1"},
        {"a": "d1", "b": "d2"},
        {"b": "d2"},
        {"a": "d3", "b": "d2"},
    ]
    for version, state in enumerate(states):
        assert await stores.at(version) == state
        for key in "ab":
            past = await stores.index.past(TENANT, key, version)
            assert (past.digest if past else None) == state.get(key)


async def test_an_expired_key_is_absent_at_every_version(stores: Stores) -> None:
    await stores.set("k", "d1", ttl_ms=5000, immutable=True)
    stores.clock.seconds += 4.999
    assert await stores.now() == {"k": "d1"}
    stores.clock.seconds += 0.001
    assert await stores.now() == await stores.at(1) == {}
    assert await stores.index.past(TENANT, "k", 1) is None
    assert (await stores.delete("k")).entries == ()
    await stores.set("k", "d2", if_version=0)
    assert await stores.now() == {"k": "d2"}


async def test_a_content_is_held_by_every_version_that_can_be_read(stores: Stores) -> None:
    await stores.set("a", "d1")
    await stores.set("b", "d1")
    assert not await stores.contents.release("acme", "d1", "writer")
    await stores.delete("a")
    await stores.delete("b")
    assert await stores.is_kept("d1")
    gone: list[str] = []
    for number in range(32):
        gone.extend((await stores.set("other", f"o{number}", keep=2)).gone)
    assert not await stores.is_kept("d1")
    assert "d1" in gone
    head = await stores.index.head(TENANT)
    assert (head.version, head.floor) == (36, 34)
    assert (await stores.index.since(TENANT, 33)).whole
    assert await stores.now() == {"other": "o31"}
    kept = [number for number in range(32) if await stores.is_kept(f"o{number}")]
    assert kept[-3:] == [29, 30, 31]
    assert len(kept) < 20


async def test_a_value_ends_with_its_key(stores: Stores) -> None:
    await stores.set("k", "d1", ttl_ms=1000)
    stores.clock.seconds += 1000
    assert await stores.contents.vacuum_of_every_tenant() == 1
    assert not await stores.is_kept("d1")
    for number in range(20):
        await stores.set("other", f"o{number}")
    assert await stores.now() == {"other": "o19"}


async def test_a_snapshot_keeps_its_state_however_others_write(stores: Stores) -> None:
    await stores.set("a", "d1")
    await stores.set("b", "d2")
    taken, dropped = await stores.index.take_snapshot(TENANT, "before", "bob", 10)
    assert (taken.label, taken.version, taken.author, dropped) == ("before", 2, "bob", [])
    await stores.delete("a")
    for number in range(40):
        await stores.set("b", f"o{number}", keep=2)
    assert await stores.index.snapshots(TENANT) == [taken]
    assert await stores.at(2) == {"a": "d1", "b": "d2"}
    assert await stores.is_kept("d1")
    past = await stores.index.past(TENANT, "a", 2)
    assert past is not None
    assert past.version == 1


async def test_a_label_is_given_once(stores: Stores) -> None:
    await stores.index.take_snapshot(TENANT, "one", "ann", 10)
    with pytest.raises(ContextConflictError) as refused:
        await stores.index.take_snapshot(TENANT, "one", "ann", 10)
    assert refused.value.context == {"label": "one", "reason": "label"}


async def test_at_the_bound_the_oldest_snapshot_makes_room_and_lets_its_contents_go(stores: Stores) -> None:
    await stores.set("k", "d1")
    await stores.index.take_snapshot(TENANT, "first", "ann", 2)
    for number in range(40):
        await stores.set("k", f"o{number}", keep=2)
    await stores.index.take_snapshot(TENANT, "second", "ann", 2)
    _, dropped = await stores.index.take_snapshot(TENANT, "third", "ann", 2)
    assert dropped == ["first"]
    assert [one.label for one in await stores.index.snapshots(TENANT)] == ["second", "third"]
    for number in range(40, 80):
        await stores.set("k", f"o{number}", keep=2)
    assert not await stores.is_kept("d1")


@pytest.mark.slow
async def test_a_trim_leaves_what_is_now_and_what_snapshots_show(stores: Stores) -> None:
    for number in range(300):
        await stores.set("k", f"o{number % 150}")
        if number == 10:
            await stores.index.take_snapshot(TENANT, "ten", "ann", 2)
    gone = await stores.index.trim(TENANT)
    assert set(gone) == {f"o{number}" for number in range(150)} - {"o10", "o149"}
    head = await stores.index.head(TENANT)
    assert (head.version, head.floor) == (300, 300)
    assert await stores.now() == await stores.at(300) == {"k": "o149"}
    assert await stores.at(11) == {"k": "o10"}
    assert await stores.contents.used_bytes("acme") == len("o10o149")
    assert list(await stores.index.trim(TENANT)) == []


async def test_a_scope_that_is_forgotten_leaves_nothing(stores: Stores) -> None:
    await stores.set("a", "d1", PRIVATE)
    await stores.set("a", "d2", PRIVATE)
    await stores.index.take_snapshot(PRIVATE, "one", "ann", 2)
    await stores.set("a", "d3", TENANT)
    await stores.index.forget(PRIVATE)
    await stores.index.forget(PRIVATE)
    assert (await stores.index.head(PRIVATE)).version == 0
    assert await stores.index.snapshots(PRIVATE) == []
    assert [await stores.is_kept(digest) for digest in ("d1", "d2", "d3")] == [False, False, True]


async def test_private_scopes_are_found_by_when_they_were_written(stores: Stores) -> None:
    await stores.set("a", "d1", PRIVATE)
    await stores.set("a", "d1", WORKSPACE)
    stores.clock.seconds += 10
    other = scope_of("acme", "s2", "session")
    await stores.set("a", "d1", other)
    assert list(await stores.index.private_scopes_of_every_tenant(stores.clock.now())) == [PRIVATE]
    await stores.index.forget(PRIVATE)
    stores.clock.seconds += 1
    assert list(await stores.index.private_scopes_of_every_tenant(stores.clock.now())) == [other]
    assert list(await stores.index.scopes("acme")) == [other, WORKSPACE]
    assert list(await stores.index.scopes("nobody")) == []


async def test_without_a_clock_the_time_of_the_store_counts(shared_store_url: str) -> None:
    client = connect(shared_store_url) if shared_store_url.startswith("redis") else None
    database = None if client else open_database(shared_store_url)
    index: ContextIndex
    if client is not None:
        index = RedisContextIndex(client)
    else:
        assert database is not None
        index = SqlContextIndex(database)
    before = datetime.now(UTC) - timedelta(seconds=1)
    written = await index.write(TENANT, [Write("k", "d", 1, ttl_ms=50)], "ann", keep=KEEP)
    assert written is not None
    entry = written.entries[0]
    assert before < entry.written_at == written.head.now < before + timedelta(seconds=30)
    async with asyncio.timeout(60):
        while await index.past(TENANT, "k", 1) is not None:  # noqa: ASYNC110  A store tells nobody.
            await asyncio.sleep(0.01)
    head = await index.head(TENANT)
    assert entry.expires_at is not None
    assert head.version == 1
    assert head.now >= entry.expires_at
    if client is not None:
        await client.aclose()
    if database is not None:
        await database.dispose()


STEPS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from([None, "x", "y"])), min_size=1, max_size=12
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_the_past_is_what_a_plain_dictionary_was(
    stores: Stores, steps: list[tuple[str, str | None]]
) -> None:
    scope = replace(WORKSPACE, key=f"workspace:{abs(hash(tuple(steps)))}", name="workspace:w")
    state: dict[str, str | None] = {}
    states = [dict(state)]
    for key, digest in steps:
        written = await (stores.delete(key, scope) if digest is None else stores.set(key, digest, scope))
        if digest is not None:
            state[key] = digest
        else:
            state.pop(key, None)
        if written.entries:
            states.append(dict(state))
    assert (await stores.index.head(scope)).version == len(states) - 1
    for version, expected in enumerate(states):
        assert await stores.at(version, scope) == expected
    await stores.index.forget(scope)
