"""The main job through two gateways in containers, with a real engine on this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest

from cwm.domain.prefix import restorable_tokens
from tests.images.doorway import doorway
from tests.images.stack import Stack, stack
from tests.live.engine import LiveEngine
from tests.live.talk import talk, words

pytestmark = [pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def engine(live_engine: LiveEngine) -> LiveEngine:
    return live_engine


@pytest.fixture(scope="module")
def fronted(image: str, engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """compose.yaml in front of the engine on the host."""
    urls = (engine.vllm_url, engine.lmcache_url, engine.coordinator_url)
    with doorway([urlsplit(url).port or 80 for url in urls]) as ports:
        vllm, lmcache, coordinator = (f"http://host.docker.internal:{port}" for port in ports)
        variables = {
            "CWM_VLLM_URL": vllm,
            "CWM_LMCACHE_URL": lmcache,
            "CWM_COORDINATOR_URL": coordinator,
        }
        with stack(tmp_path_factory.mktemp("stack"), **variables) as up:
            yield up


def ready(fronted: Stack) -> None:
    """Wait until the gateways see the engine."""
    deadline = time.monotonic() + 60
    while (answer := httpx2.get(f"{fronted.url}/readyz", trust_env=False)).status_code != 200:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.2)


async def test_what_one_replica_froze_the_other_thaws_after_the_engine_and_the_first_were_killed(
    fronted: Stack, engine: LiveEngine
) -> None:
    first, second = fronted.replicas()
    second.kill("KILL")
    await asyncio.to_thread(ready, fronted)
    async with talk(fronted.url, engine.model_name) as agent:
        session, ids = await agent.fill(words(700))
        uninterrupted = await agent.complete(ids, max_tokens=32)
        await agent.tool("window_freeze", session_id=session, window_name="kept")

        await asyncio.to_thread(fronted.up)
        first.kill("KILL")
        engine.kill("vllm")
        engine.kill("lmcache")
        await asyncio.to_thread(engine.wait_ready)

        assert [each.id for each in fronted.replicas()] == [second.id]
        thawed = await agent.tool("window_thaw", window_name="kept")
        continued = await agent.complete(ids, session=thawed["session_id"], max_tokens=32)

    assert thawed["partial"] is False
    assert thawed["receipt"]["tokens_restored"] == restorable_tokens(len(ids), engine.chunk_size)
    assert continued["token_ids"] == uninterrupted["token_ids"]
