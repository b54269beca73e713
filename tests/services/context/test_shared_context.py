"""Shared context as agents on several replicas have it."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest
from sqlalchemy import Engine, event

from cwm.adapters.memory.agent_sessions import InProcessAgentSessions
from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.redis.context.index import RedisContextIndex
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import (
    ContextConflictError,
    InvalidParameterError,
    SnapshotNotFoundError,
    StorageCorruptionError,
    StorageQuotaExceededError,
)
from cwm.domain.shared_context import Write, scope_of, uri_of, watches
from cwm.services.context.requests import ContextLimits
from cwm.services.context.upkeep import ContextUpkeep
from tests.services.context_of import ANN, BOB, MEGABYTE, TENANT, Replica, replica
from tests.services.replicas_of import HandClock

pytestmark = pytest.mark.slow

PRIVATE = scope_of("acme", "s1", "session")
VALUES: list[Any] = [
    None,
    True,
    0,
    -1.5,
    "",
    "ä\u2028",
    [],
    {},
    [1, [2, {"a": None}]],
    {"b": 1, "a": "x" * 5000},
]


@pytest.fixture
def clock() -> HandClock:
    return HandClock(4_000_000_000.0)


@pytest.fixture
def changes() -> InProcessChanges:
    return InProcessChanges()


@pytest.fixture
async def replicas(
    shared_store_url: str, sqlite_url: str, clock: HandClock, changes: InProcessChanges
) -> AsyncIterator[tuple[Replica, Replica]]:
    async with (
        replica(shared_store_url, sqlite_url, changes, clock) as one,
        replica(shared_store_url, sqlite_url, changes, clock) as other,
    ):
        yield one, other


async def test_what_one_replica_sets_another_gets(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    for number, value in enumerate(VALUES):
        version = await one.set("k", value)
        found = await other.context.get(TENANT, "k")
        assert found.entry is not None
        assert (found.value, found.version, found.entry.version) == (value, version, version)
        assert version == number + 1
    assert (await other.context.delete(BOB, TENANT, "k")) is not None
    assert (await one.context.get(TENANT, "k")).entry is None
    assert (await one.context.delete(ANN, TENANT, "k")) is None


@pytest.mark.slow
@pytest.mark.parametrize("priority", [0, 9])
async def test_a_value_that_is_loaded_again_has_the_priority_of_its_key(
    replicas: tuple[Replica, Replica], priority: int
) -> None:
    one, other = replicas
    await one.set("k", "value", priority=priority)
    found = await other.context.get(TENANT, "k")
    assert found.entry is not None
    facts = other.contents.cache.facts((TENANT.tenant, str(found.entry.digest)))
    assert facts is not None
    assert facts.priority == priority


@pytest.mark.parametrize(
    "shared_store_url",
    # On Postgres each writer that comes too late waits for the one before it: fifteen seconds.
    ["sqlite", "redis", pytest.param("postgres", marks=pytest.mark.slow)],
    indirect=True,
)
async def test_a_hundred_writers_on_two_replicas_lose_no_update(replicas: tuple[Replica, Replica]) -> None:
    await replicas[0].set("counter", {"total": 0, "by": []})

    async def add(number: int) -> int:
        one = replicas[number % 2]
        tries = 0
        while True:
            tries += 1
            found = await one.context.get(TENANT, "counter")
            assert found.entry is not None
            value = {"total": found.value["total"] + 1, "by": [*found.value["by"], number]}
            try:
                await one.set("counter", value, if_version=found.entry.version)
            except ContextConflictError:
                continue
            return tries

    async with asyncio.timeout(120):
        await asyncio.gather(*(add(number) for number in range(100)))
    for one in replicas:
        counter = await one.get("counter")
        assert counter["total"] == 100
        assert sorted(counter["by"]) == list(range(100))
    assert (await replicas[0].context.index.head(TENANT)).version == 101


async def test_an_agent_that_reads_a_snapshot_sees_one_state(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    for key in "abc":
        await one.set(key, f"old {key}")
    await one.context.snapshot(ANN, TENANT, "then")
    for key in "abd":
        await other.set(key, f"new {key}")
    await other.context.delete(BOB, TENANT, "c")
    for each in replicas:
        assert [await each.get(key, snapshot="then") for key in "abcd"] == ["old a", "old b", "old c", None]
        assert [await each.get(key, version=3) for key in "abcd"] == ["old a", "old b", "old c", None]
        assert [await each.get(key) for key in "abcd"] == ["new a", "new b", None, "new d"]
        page = await each.context.list(TENANT, "", None, 10, "then")
        assert [entry.key for entry in page.entries] == ["a", "b", "c"]
        assert page.version == 3
    with pytest.raises(SnapshotNotFoundError):
        await one.get("a", snapshot="never")
    with pytest.raises(InvalidParameterError, match="not both"):
        await one.get("a", snapshot="then", version=1)


async def test_two_versions_share_every_entry_that_is_the_same_in_both(sqlite_url: str) -> None:
    async with replica(sqlite_url, sqlite_url) as one:
        views = one.context.views
        writes = [Write(f"k{number}", f"{number:064}", 1) for number in range(2_000)]
        await one.context.index.write(TENANT, writes, "ann", keep=100)
        before = (await views.now(TENANT)).entries
        tracemalloc.start()
        version = await one.set("k7", "changed")
        after = (await views.now(TENANT)).entries
        taken = sum(trace.size for trace in tracemalloc.take_snapshot().traces if _is_of_maps(trace))
        tracemalloc.stop()
        assert views.past(TENANT, version - 1) is before
        assert [key for key in before if after[key] is not before[key]] == ["k7"]
        # A path of nodes, and no copy of all 2,000.
        assert taken < 10_000


def _is_of_maps(trace: tracemalloc.Trace) -> bool:
    return any(frame.filename.endswith("context_views.py") for frame in trace.traceback)


async def test_a_snapshot_is_as_much_work_with_very_many_keys_as_with_few(
    shared_store_url: str, sqlite_url: str
) -> None:
    async with replica(shared_store_url, sqlite_url) as one:
        work: list[list[str]] = []
        await one.context.snapshot(ANN, TENANT, "nothing")
        for label, keys in (("few", 5), ("many", 2_000)):
            writes = [Write(f"k{number}", f"{number:064}", 1) for number in range(keys)]
            await one.context.index.write(TENANT, writes, "ann", keep=100)
            used = await one.store.used_bytes("acme")
            async with counting(one) as done:
                await one.context.snapshot(ANN, TENANT, label)
            assert await one.store.used_bytes("acme") == used
            work.append(done)
        assert work[0] == work[1] != []


@asynccontextmanager
async def counting(one: Replica) -> AsyncIterator[list[str]]:
    """What the store is told to do: statements with how many values each, or commands of Redis."""
    done: list[str] = []
    index = one.context.index
    if isinstance(index, RedisContextIndex):
        before = await commands(index)
        yield done
        done += sorted(((await commands(index)) - before).elements())
        return

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        done.append(f"{statement} {len(parameters)}")

    event.listen(Engine, "before_cursor_execute", note)
    yield done
    event.remove(Engine, "before_cursor_execute", note)


async def commands(index: RedisContextIndex) -> Counter[str]:
    told = await index._client.info("commandstats")
    return Counter({name: of["calls"] for name, of in told.items() if name != "cmdstat_info"})


async def test_a_restore_is_one_version_and_can_itself_be_undone(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    await one.set("same", 1)
    await one.set("changed", "before")
    await one.set("deleted", "before")
    await one.context.snapshot(ANN, TENANT, "before")
    await other.set("changed", "after")
    await other.set("added", "after")
    await other.context.delete(BOB, TENANT, "deleted")
    await other.context.snapshot(BOB, TENANT, "after")
    restored = await other.context.restore(BOB, TENANT, "before")
    assert (restored.version, restored.written, restored.deleted) == (7, 2, 1)
    for each in replicas:
        assert [await each.get(key) for key in ("same", "changed", "deleted", "added")] == [
            1,
            "before",
            "before",
            None,
        ]
        assert await each.get("added", version=6) == "after"
    again = await one.context.restore(ANN, TENANT, "before")
    assert (again.version, again.written, again.deleted) == (7, 0, 0)
    await one.context.restore(ANN, TENANT, "after")
    assert [await other.get(key) for key in ("changed", "deleted", "added")] == ["after", None, "after"]


async def test_a_restore_of_very_many_keys_tells_all_who_watch_one_of_them(
    replicas: tuple[Replica, Replica], changes: InProcessChanges
) -> None:
    one, _ = replicas
    await one.context.snapshot(ANN, TENANT, "empty")
    keys = [f"files/é {number}*" for number in range(1_001)]
    held = await one.contents.to_store(b"1")
    writes = [Write(key, held.digest, 1) for key in keys]
    await one.context.index.write(TENANT, writes, "ann", new=held, keep=100)
    heard: list[Change] = []
    changes.subscribe(heard.append)
    assert (await one.context.restore(ANN, TENANT, "empty")).deleted == 1_001
    told = {change.uri: change for change in heard if change.kind is ChangeKind.RESOURCE}
    assert {change.tenant for change in told.values()} == {"acme"}
    for key in keys:
        exact, prefix = uri_of("tenant", key), f"{uri_of('tenant', key)}*"
        assert any(watches(exact, uri) and watches(prefix, uri) for uri in told if uri)
    for other in ("cwm://context/workspace:w/files/*", uri_of("tenant", "file"), "cwm://windows"):
        assert not any(watches(other, uri) for uri in told if uri)


async def test_a_restore_that_would_change_an_immutable_key_changes_nothing(
    replicas: tuple[Replica, Replica],
) -> None:
    one, other = replicas
    await one.set("k", "before")
    await one.context.snapshot(ANN, TENANT, "before")
    await one.set("k", "after")
    await one.set("fixed", 1, immutable=True)
    with pytest.raises(ContextConflictError) as refused:
        await other.context.restore(BOB, TENANT, "before")
    assert refused.value.context == {"key": "fixed", "current_version": 3, "reason": "immutable"}
    assert await one.get("k") == "after"


async def test_a_key_expires_on_every_replica_at_once(
    replicas: tuple[Replica, Replica], clock: HandClock
) -> None:
    one, other = replicas
    await one.set("k", 1, ttl_seconds=5)
    clock.seconds += 4.9
    assert [await each.get("k") for each in replicas] == [1, 1]
    clock.seconds += 0.1
    assert [await each.get("k") for each in replicas] == [None, None]
    assert (await other.context.list(TENANT, "", None, 10)).entries == ()
    assert (await other.context.stats(TENANT)).keys == 0
    assert await other.set("k", 2, if_version=0) == 2


async def test_keys_are_listed_by_prefix_page_by_page(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    keys = sorted(["a", "b/", "b/1", "b/2", "b/ä", "b/\U0001f600", "b0", "c"])
    for key in keys:
        await one.set(key, key)
    page = await other.context.list(TENANT, "", None, 100)
    assert [entry.key for entry in page.entries] == keys
    assert not page.more
    found: list[str] = []
    after: str | None = None
    while True:
        page = await other.context.list(TENANT, "b/", after, 2)
        found.extend(entry.key for entry in page.entries)
        if not page.more:
            break
        after = found[-1]
    assert found == [key for key in keys if key.startswith("b/")]
    assert (await other.context.list(TENANT, "b/", "a", 100)).entries[0].key == "b/"
    assert (await other.context.list(TENANT, "x", None, 100)).entries == ()
    assert (await other.context.list(TENANT, "b/", "c", 100)).entries == ()


async def damaged(replica: Replica, key: str, value: str) -> str:
    """The digest of a value whose stored copy is no more what was set."""
    await replica.set(key, value)
    found = await replica.context.get(TENANT, key)
    assert found.entry is not None
    digest = str(found.entry.digest)
    await replica.store.put("acme", digest, b"\x00damaged", "h", None, None)
    return digest


async def test_what_was_damaged_in_the_store_is_an_error_until_it_is_set_again(
    replicas: tuple[Replica, Replica],
) -> None:
    one, other = replicas
    digest = await damaged(one, "k", "value " * 1000)
    one.contents.cache.drop(("acme", digest))
    with pytest.raises(StorageCorruptionError, match="set the key again"):
        await other.get("k")
    with pytest.raises(StorageCorruptionError):
        await one.get("k")
    await other.set("k", "value " * 1000)
    assert await one.get("k") == "value " * 1000


async def test_a_value_that_is_set_while_what_is_stored_is_damaged_is_there_for_all(
    replicas: tuple[Replica, Replica],
) -> None:
    one, other = replicas
    await damaged(one, "k", "value " * 1000)
    await one.set("again", "value " * 1000)
    assert await other.get("k") == await other.get("again") == "value " * 1000


async def test_a_value_that_is_overwritten_and_trimmed_while_it_is_read_is_read_as_it_is_now(
    replicas: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = replicas
    await one.set("k", "before")
    load = other.store.get

    async def late(tenant: str, digest: str) -> Any:
        monkeypatch.setattr(other.store, "get", load)
        await one.set("k", "after")
        await one.context.index.trim(TENANT)
        return await load(tenant, digest)

    monkeypatch.setattr(other.store, "get", late)
    assert await other.get("k") == "after"


async def test_each_write_tells_those_it_may_concern(
    replicas: tuple[Replica, Replica], changes: InProcessChanges
) -> None:
    heard: list[Change] = []
    changes.subscribe(heard.append)
    one, _ = replicas
    await one.set("a b/*", 1)
    await one.set("k", 1, PRIVATE)
    await one.context.delete(ANN, TENANT, "a b/*")
    told = [change for change in heard if change.kind is ChangeKind.RESOURCE]
    assert told == [
        Change(ChangeKind.RESOURCE, "cwm://context/tenant/a%20b/%2A", tenant="acme"),
        Change(ChangeKind.RESOURCE, "cwm://context/session/k", tenant="acme", private_to="s1"),
        Change(ChangeKind.RESOURCE, "cwm://context/tenant/a%20b/%2A", tenant="acme"),
    ]


async def test_a_write_that_its_caller_gave_up_is_told_if_it_was_done(
    replicas: tuple[Replica, Replica], changes: InProcessChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = replicas
    under_way, heard = asyncio.Event(), asyncio.Event()
    changes.subscribe(lambda _: heard.set())
    write = one.context.index.write

    async def slow(*given: Any, **named: Any) -> Any:
        under_way.set()
        return await write(*given, **named)

    monkeypatch.setattr(one.context.index, "write", slow)
    setting = asyncio.create_task(one.set("k", 1))
    await under_way.wait()
    setting.cancel()
    async with asyncio.timeout(10):
        await heard.wait()
    assert setting.cancelled()
    assert await other.get("k") == 1


async def test_a_private_scope_goes_with_its_agent_session(
    replicas: tuple[Replica, Replica], changes: InProcessChanges, clock: HandClock
) -> None:
    one, other = replicas
    sessions = InProcessAgentSessions(ttl_seconds=60, monotonic=clock.monotonic)
    upkeep = ContextUpkeep(one.context, sessions, changes, 60)
    scopes = [scope_of("acme", key, "session") for key in ("ended", "idle", "principal-0")]
    alive = scope_of("acme", await sessions.begin(ANN), "session")
    for scope in (*scopes, alive, TENANT):
        await other.set("k", 1, scope)
    await changes.publish(Change(ChangeKind.ENDED, agent_session="ended", tenant="acme"))
    await upkeep.settle()
    assert [await other.get("k", scope) for scope in scopes] == [None, 1, 1]
    clock.seconds += 50
    await sessions.alive(alive.key)
    assert await sessions.touch(alive.key.removeprefix("session:"), ANN)
    clock.seconds += 50
    await upkeep.sweep()
    assert [await other.get("k", scope) for scope in (*scopes, alive, TENANT)] == [None, None, 1, 1, 1]
    upkeep.close()


@pytest.fixture
async def small(redis_url: str, sqlite_url: str) -> AsyncIterator[Replica]:
    async with replica(
        redis_url, sqlite_url, quota=10_000, limits=ContextLimits(value_bytes=10_000, versions=5, snapshots=2)
    ) as one:
        yield one


async def test_a_value_and_a_tenant_have_bounds(small: Replica) -> None:
    with pytest.raises(InvalidParameterError, match="10002 bytes of JSON, and may have 10000"):
        await small.set("k", "x" * 10_000)
    for number in range(2):
        await small.set(f"k{number}", [number, [n * 31 % 97 for n in range(2500)], "é" * 500])
    noise = [sha256(str(number).encode()).hexdigest() for number in range(140)]
    await small.set("noise", noise)
    with pytest.raises(StorageQuotaExceededError) as refused:
        await small.set("more", [digest[::-1] for digest in noise])
    assert refused.value.context["quota_bytes"] == 10_000


async def test_at_the_quota_the_past_of_the_scope_makes_room(redis_url: str, sqlite_url: str) -> None:
    async with replica(redis_url, sqlite_url, quota=20_000) as one:
        for number in range(60):
            await one.set("k", [sha256(f"{number} {n}".encode()).hexdigest() for n in range(30)])
        assert await one.get("k") is not None
        assert await one.get("k", version=59) is not None
        with pytest.raises(InvalidParameterError):
            await one.get("k", version=2)


async def test_a_version_that_is_not_kept_any_more_is_refused_with_those_that_are(small: Replica) -> None:
    for number in range(40):
        await small.set("k", number)
    assert await small.get("k", version=38) == 37
    for version in (3, 41):
        with pytest.raises(InvalidParameterError) as refused:
            await small.get("k", version=version)
        assert refused.value.context == {"field": "version", "oldest_version": 35, "current_version": 40}


async def test_a_lost_compare_and_set_leaves_nothing_in_the_store(small: Replica) -> None:
    await small.set("k", 1)
    used = await small.store.used_bytes("acme")
    for number in range(5):
        with pytest.raises(ContextConflictError):
            await small.set("k", f"other {number}", if_version=7)
    assert await small.store.used_bytes("acme") == used


@pytest.mark.parametrize("key", ["", "x" * 257, "a\nb", "a\x00b", "\ud800"])
async def test_a_key_is_printable_text(small: Replica, key: str) -> None:
    with pytest.raises(InvalidParameterError, match="key:"):
        await small.set(key, 1)
    with pytest.raises(InvalidParameterError, match="key:"):
        await small.get(key)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {"a": {1, 2}}])
async def test_a_value_is_json(small: Replica, value: Any) -> None:
    with pytest.raises(InvalidParameterError, match="value:"):
        await small.set("k", value)


async def test_a_gateway_that_starts_on_a_full_store_serves_the_first_reads(
    redis_url: str, sqlite_url: str
) -> None:
    async with replica(redis_url, sqlite_url) as first:
        for number in range(50):
            await first.set(f"k{number}", {"n": number})
    async with replica(redis_url, sqlite_url) as second:
        assert [await second.get(f"k{number}") for number in range(50)] == [
            {"n": number} for number in range(50)
        ]
        assert len((await second.context.list(TENANT, "", None, 100)).entries) == 50


async def test_knowing_which_keys_there_are_is_counted_too(redis_url: str, sqlite_url: str) -> None:
    """Half of the memory at most: the scopes that were not looked at for longest are forgotten."""
    async with replica(redis_url, sqlite_url, memory=MEGABYTE) as one:
        cache, views = one.contents.cache, one.context.views
        writes = [Write(f"k{number}", f"{number:064}", 1) for number in range(900)]
        for name in "abc":
            scope = scope_of("acme", "s1", f"workspace:{name}")
            await one.context.index.write(scope, writes, "ann", keep=100)
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0], cache.reserved
            await views.now(scope)
            taken = tracemalloc.get_traced_memory()[0] - before[0], cache.reserved - before[1]
            tracemalloc.stop()
            if name == "a":
                assert 0.7 * taken[0] < taken[1] < 1.5 * taken[0]
        assert len(views) == 1
        assert cache.reserved <= MEGABYTE / 2


@pytest.mark.slow
async def test_a_scope_that_is_larger_than_the_memory_for_keys_is_served_from_the_store(
    shared_store_url: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica(shared_store_url, sqlite_url, memory=MEGABYTE) as one:
        cache, views = one.contents.cache, one.context.views
        held = await one.contents.to_store(b"1")
        writes = [Write(f"k{number:04}", held.digest, 1) for number in range(3_000)]
        await one.context.index.write(TENANT, writes, "ann", new=held, keep=100)
        page = await one.context.list(TENANT, "k29", None, 1_000)
        assert [entry.key for entry in page.entries] == [f"k{number}" for number in range(2_900, 3_000)]
        assert cache.reserved <= MEGABYTE / 2

        async def never(*_: Any) -> Any:
            raise AssertionError("all keys were read for one")

        monkeypatch.setattr(one.context.index, "since", never)
        assert [await one.get(f"k{number:04}") for number in (0, 2_999, 3_000)] == [1, 1, None]
        before = await one.set("k0000", 2)
        assert await one.get("k0000") == 2
        assert await one.get("k0000", version=before - 1) == 1
        monkeypatch.undo()
        await one.context.index.write(
            TENANT, [Write(f"k{number:04}") for number in range(2_900)], "ann", keep=1
        )
        assert len((await one.context.list(TENANT, "", None, 1_000)).entries) == 100
        assert cache.reserved > 10_000
        assert views.past(TENANT, before + 1) is not None


@pytest.mark.slow
async def test_entries_that_only_older_versions_have_are_counted_too(sqlite_url: str) -> None:
    async with replica(sqlite_url, sqlite_url, memory=2 * MEGABYTE) as one:
        cache, index, views = one.contents.cache, one.context.index, one.context.views
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for turn in range(40):
            writes = [Write(f"k{number}", f"{number + turn:064}", 1) for number in range(300)]
            await index.write(TENANT, writes, "ann", keep=100)
            await views.now(TENANT)
            assert cache.reserved <= MEGABYTE
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert 0.7 * taken < cache.reserved < 1.5 * taken


async def test_the_memory_for_keys_can_change_while_it_is_used(sqlite_url: str) -> None:
    async with replica(sqlite_url, sqlite_url, memory=2 * MEGABYTE) as one:
        cache, views = one.contents.cache, one.context.views
        writes = [Write(f"k{number}", f"{number:064}", 1) for number in range(900)]
        for name in "ab":
            await one.context.index.write(scope_of("acme", "s1", f"workspace:{name}"), writes, "ann", keep=1)
            await views.now(scope_of("acme", "s1", f"workspace:{name}"))
        assert len(views) == 2
        views.resize(cache.reserved - 1)
        assert len(views) == 1
        views.resize(10_000)
        assert (len(views), cache.reserved) == (0, 0)
