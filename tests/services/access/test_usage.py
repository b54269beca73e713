"""What callers use of their limits, as each may see it; looking counts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from cwm.adapters.limits.counts import LimitsRequestCounts
from cwm.adapters.limits.in_process import InProcessStorage
from cwm.adapters.local.clock import SystemClock
from cwm.adapters.memory.running_requests import InProcessRunningRequests
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import open_database
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.access import EVERY, OF_AN_AGENT
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.errors import StorageQuotaExceededError, StorageReadError, StorageWriteError
from cwm.domain.limits import Bucket, Level, LimitRules, Rate, Use
from cwm.domain.principal import Principal
from cwm.services.access.limits import CountStore, Limits
from cwm.services.access.storage import Storage
from cwm.services.access.usage import Measure, Standing, Usage
from tests.services.replicas_of import HandClock

ANN = Principal("acme", "ann", OF_AN_AGENT)
ROOT = Principal("acme", "root", EVERY)
EVE = Principal("evil", "eve", EVERY)
MINUTE, HOUR = Rate(10, 60), Rate(1000, 3600)
ALL = LimitRules(
    session=(MINUTE,),
    principal=(MINUTE, Rate(100, 3600)),
    tenant=(MINUTE,),
    running_principal=2,
    running_tenant=4,
    streams_principal=3,
    lists=(MINUTE,),
    principal_tokens=(HOUR,),
    tenant_tokens=(HOUR,),
)

Made = Callable[..., Limits]


@pytest.fixture
def made(sqlite_url: str) -> Made:
    def limits(rules: LimitRules, *, refuse: bool = False) -> Limits:
        meter, clock = PrometheusMeter(), SystemClock()
        counts = LimitsRequestCounts(InProcessStorage)
        audit = SqlAuditLog(open_database(sqlite_url), ChainKeys([b"a secret"]))
        store = CountStore(refuse=refuse, meter=meter, clock=clock)
        return Limits(rules, counts, InProcessRunningRequests(counts), store, audit, meter, clock)

    return limits


async def used(limits: Limits, who: Principal) -> dict[tuple[Measure, Level, Rate | None], int | None]:
    return {
        (each.measure, each.level, each.rate): None if each.use is None else each.use.amount
        for each in await Usage(limits)(who)
    }


async def test_what_one_uses_is_shown_as_often_as_one_looks(made: Made) -> None:
    limits = made(ALL)
    release = await limits.admit(ANN, "a", cost=2)
    await limits.count_list(ANN)
    await limits.spend(ANN, 700)
    async with limits.listening(ANN):
        for _ in range(30):
            standing = await used(limits, ANN)
    assert standing == {
        (Measure.REQUESTS, Level.SESSION, MINUTE): None,
        (Measure.REQUESTS, Level.PRINCIPAL, MINUTE): 2,
        (Measure.REQUESTS, Level.PRINCIPAL, Rate(100, 3600)): 2,
        (Measure.LISTS, Level.PRINCIPAL, MINUTE): 1,
        (Measure.RUNNING, Level.PRINCIPAL, None): 2,
        (Measure.STREAMS, Level.PRINCIPAL, None): 1,
        (Measure.TOKENS, Level.PRINCIPAL, HOUR): 700,
    }
    release()
    await limits.settle()
    after = await used(limits, ANN)
    assert after[Measure.RUNNING, Level.PRINCIPAL, None] == 0
    assert after[Measure.STREAMS, Level.PRINCIPAL, None] == 0


async def test_the_tenants_use_is_for_its_administrator_and_of_its_own_tenant(made: Made) -> None:
    limits = made(ALL)
    await limits.admit(ANN, "a")
    await limits.spend(ANN, 900)
    root, eve = await used(limits, ROOT), await used(limits, EVE)
    assert root[Measure.REQUESTS, Level.TENANT, MINUTE] == 1
    assert root[Measure.RUNNING, Level.TENANT, None] == 1
    assert root[Measure.TOKENS, Level.TENANT, HOUR] == 900
    assert root[Measure.TOKENS, Level.PRINCIPAL, HOUR] == 0
    assert set(eve.values()) == {0, None}
    assert not [key for key in await used(limits, ANN) if key[1] is Level.TENANT]


async def test_a_budget_is_near_from_four_fifths_on(made: Made) -> None:
    limits = made(ALL)
    usage = Usage(limits)
    await limits.spend(ANN, 799)
    assert await usage.near(ANN) == []
    await limits.spend(ANN, 1)
    (near,) = await usage.near(ANN)
    assert (near.measure, near.level) == (Measure.TOKENS, Level.PRINCIPAL)
    assert near.use is not None
    assert 0 < near.use.seconds <= 3600
    assert [each.level for each in await usage.near(ROOT)] == [Level.TENANT]
    assert await usage.near(EVE) == []


class Stored:
    """What each of a tenant's people has stored; ``reads``: how often it was asked."""

    def __init__(self, **by_owner: int) -> None:
        self.of_acme, self.reads, self.is_away = by_owner, 0, False

    async def by_owner(self, tenant: str) -> dict[str, int]:
        self.reads += 1
        if self.is_away:
            raise StorageReadError("The registry cannot be read.")
        return self.of_acme if tenant == ANN.tenant else {}


def stored_in(standings: list[Standing]) -> dict[Level, tuple[int | None, int | None]]:
    return {
        each.level: (each.most, None if each.use is None else each.use.amount)
        for each in standings
        if each.measure is Measure.STORED
    }


async def test_what_is_stored_is_shown_and_near_from_four_fifths_on(made: Made) -> None:
    limits, records = made(LimitRules(stored_principal=100, stored_tenant=1000)), Stored(ann=80, bob=9)
    usage = Usage(limits, Storage(records, limits, limits.clock))
    assert stored_in(await usage(ANN)) == {Level.PRINCIPAL: (100, 80)}
    assert stored_in(await usage(ROOT)) == {Level.PRINCIPAL: (100, 0), Level.TENANT: (1000, 89)}
    assert stored_in(await usage(EVE))[Level.TENANT] == (1000, 0)
    assert [each.measure for each in await usage.near(ANN)] == [Measure.STORED]
    records.is_away = True
    away = Usage(limits, Storage(records, limits, limits.clock))
    assert stored_in(await away(ANN)) == {Level.PRINCIPAL: (100, None)}


async def test_sums_are_read_once_for_all_who_ask_within_two_seconds(made: Made) -> None:
    limits, records, clock = made(LimitRules(stored_principal=100)), Stored(ann=99), HandClock()
    storage = Storage(records, limits, clock)
    await asyncio.gather(*(storage.require_room(ANN.tenant, ANN.subject) for _ in range(20)))
    assert records.reads == 1
    records.of_acme = {"ann": 100}
    clock.seconds += 2
    with pytest.raises(StorageQuotaExceededError) as refused:
        await storage.require_room(ANN.tenant, ANN.subject)
    assert (refused.value.context["used_bytes"], refused.value.context["level"]) == (100, "principal")
    await storage.require_room(ANN.tenant, "bob")
    assert records.reads == 2
    records.of_acme = {}
    clock.seconds += 2
    await storage.require_room(ANN.tenant, ANN.subject)
    assert records.reads == 3


async def test_without_a_limit_there_is_nothing_to_use(made: Made) -> None:
    standings = await Usage(made(LimitRules()))(ROOT)
    assert len(standings) == 9
    assert all(each == Standing(each.measure, each.level) for each in standings)


@pytest.mark.parametrize("refuse", [False, True])
async def test_a_store_that_is_away_refuses_no_look(made: Made, *, refuse: bool) -> None:
    class Away(LimitsRequestCounts):
        async def requests_in(self, bucket: Bucket) -> Use:
            raise StorageWriteError("The counts cannot be reached.")

        tokens_in = requests_in

    limits = made(ALL, refuse=refuse)
    limits = replace(limits, counts=Away(InProcessStorage))
    standings = await Usage(limits)(ROOT)
    rated = [each for each in standings if each.rate is not None]
    assert {each.use for each in rated} == {None}
    assert {each.most for each in rated} == {10, 100, 1000}
    assert await Usage(limits).near(ROOT) == []
