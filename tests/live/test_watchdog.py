"""The watchdog, on a real engine whose own health endpoints stay green whatever happens below them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import Talk, talk, words

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

_PATIENCE_SECONDS = 120


class Watched:
    """What one gateway tells of its watchdog."""

    def __init__(self, agent: Talk) -> None:
        self._agent = agent

    async def looks(self) -> dict[str, int]:
        """Looks so far by outcome."""
        text = (await self._agent.http.get(f"{self._agent.url}/metrics")).text
        return {
            sample.labels["outcome"]: round(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "cwm_watchdog_checks_total"
        }

    async def healthy(self) -> dict[str, float]:
        """The gauge by instance."""
        text = (await self._agent.http.get(f"{self._agent.url}/metrics")).text
        return {
            sample.labels["instance"]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "cwm_watchdog_healthy"
        }

    async def kv_store(self) -> tuple[str, str]:
        """Status and message of the component."""
        (component,) = (await self._agent.tool("health_check", component="kv_store"))["components"]
        return component["status"], component["message"]

    async def until_looks(self, enough: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not enough(looks := await self.looks()):  # noqa: ASYNC110 - polled over HTTP
                await asyncio.sleep(0.05)
            return looks

    async def until_status(self, wanted: str) -> str:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while (seen := await self.kv_store())[0] != wanted:  # noqa: ASYNC110 - polled over HTTP
                await asyncio.sleep(0.05)
            return seen[1]


async def lose_everything(live_engine: LiveEngine) -> None:
    """A Redis that was flushed and a disk that was emptied."""
    async with Redis.from_url(live_engine.redis_url) as redis:
        await redis.flushall()
    for file in await asyncio.to_thread(list, (live_engine.storage_path / "kv").glob("*.data")):
        await asyncio.to_thread(file.unlink, missing_ok=True)


async def all_in(redis: Redis, hashes: list[str]) -> bool:
    keys = [key.decode() async for key in redis.scan_iter(count=1000)]
    return all(any(name in key for key in keys) for name in hashes)


@pytest.fixture
async def gateway_watched(live_engine: LiveEngine, tmp_path: Path) -> AsyncIterator[LiveGateway]:
    """A gateway of the test's own, that no other one shares a canary with."""
    with served(live_engine, tmp_path / "cwm.db", "watched", CWM_WATCHDOG_SECONDS="0.5") as gateway:
        yield gateway


@pytest.fixture
async def watched(gateway_watched: LiveGateway) -> AsyncIterator[Watched]:
    """Seen once at work: what is missing from here on was lost."""
    async with talk(gateway_watched.url, gateway_watched.model) as agent:
        watched = Watched(agent)
        await watched.until_looks(lambda looks: looks.get("found", 0) >= 2)
        yield watched


async def test_a_working_engine_is_watched_and_found_healthy(watched: Watched) -> None:
    looks = await watched.looks()
    assert looks["stored"] == 1
    assert set(looks) <= {"stored", "found", "not_looked"}
    assert list((await watched.healthy()).values()) == [1.0]
    assert (await watched.kv_store())[0] == "healthy"


async def test_gateways_that_watch_the_same_engine_do_not_take_each_other_for_faults(
    live_engine: LiveEngine, tmp_path: Path
) -> None:
    database = tmp_path / "cwm.db"
    with (
        served(live_engine, database, "one", CWM_WATCHDOG_SECONDS="0.1") as one,
        served(live_engine, database, "two", CWM_WATCHDOG_SECONDS="0.1") as two,
    ):
        async with talk(one.url, one.model) as first, talk(two.url, two.model) as second:
            seen = [
                await Watched(agent).until_looks(lambda looks: looks.get("found", 0) >= 50)
                for agent in (first, second)
            ]
    for looks in seen:
        assert set(looks) <= {"stored", "found", "not_looked"}


async def test_a_redis_that_is_away_degrades_the_cache_until_it_is_back(
    live_engine: LiveEngine, gateway_watched: LiveGateway, watched: Watched
) -> None:
    with live_engine.held_down("valkey"):
        message = await watched.until_status("degraded")
        assert "Redis" in message
        async with talk(gateway_watched.url, gateway_watched.model) as agent:
            ready = await agent.http.get(f"{gateway_watched.url}/readyz")
        kv_store = next(c for c in ready.json()["components"] if c["name"] == "kv_store")
        assert ready.status_code == 200
        assert (kv_store["status"], kv_store["message"]) == ("degraded", message)
        assert kv_store["since"]
        assert list((await watched.healthy()).values()) == [0.0]
    await watched.until_status("healthy")
    assert list((await watched.healthy()).values()) == [1.0]


async def test_chunks_that_vanished_are_noticed_and_stored_again(
    live_engine: LiveEngine, watched: Watched
) -> None:
    await lose_everything(live_engine)
    await watched.until_looks(lambda looks: looks.get("lost", 0) >= 1)
    assert (await watched.kv_store())[0] == "healthy"
    found = (await watched.looks())["found"]
    looks = await watched.until_looks(lambda looks: looks["found"] >= found + 3)
    assert set(looks) <= {"stored", "found", "lost", "not_looked"}, looks
    assert looks["lost"] == 1, looks


async def test_a_redis_that_came_back_empty_gets_the_guaranteed_windows_again(
    live_engine: LiveEngine, gateway_watched: LiveGateway, watched: Watched
) -> None:
    async with talk(gateway_watched.url, gateway_watched.model) as agent:
        session, _ = await agent.fill(words(100))
        window = f"w_{session}"
        await agent.tool("window_freeze", session_id=session, window_name=window)
        shown = await agent.tool("window_status", window_name=window, include_blocks=True)
        hashes = [block["hash"] for block in shown["blocks"]]
        assert len(hashes) == 3
        async with Redis.from_url(live_engine.redis_url) as redis:
            await redis.flushall()
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while not await all_in(redis, hashes):  # noqa: ASYNC110 - LMCache tells nobody
                    await asyncio.sleep(0.05)
        assert (await watched.looks())["lost"] == 1
        assert not (await agent.tool("window_thaw", window_name=window))["partial"]


async def test_an_outage_of_lmcache_is_only_waited_for_and_what_it_lost_is_told_afterwards(
    live_engine: LiveEngine, watched: Watched
) -> None:
    restarts = live_engine.restarts("vllm")
    with live_engine.held_down("lmcache"):
        await lose_everything(live_engine)
        before = (await watched.looks()).get("not_looked", 0)
        await watched.until_looks(lambda looks: looks.get("not_looked", 0) >= before + 5)
        assert (await watched.kv_store())[0] == "unhealthy"
    await watched.until_looks(lambda looks: looks.get("lost", 0) >= 1)
    assert (await watched.kv_store())[0] == "healthy"
    assert live_engine.restarts("vllm") == restarts
