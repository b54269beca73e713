"""The served model's own tokenizer, beside the vocabulary that results are counted in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import httpx2
import pytest

from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.adapters.vllm.client import VllmEngine
from cwm.services.results.token_drift import TokenDrift
from cwm.settings import Engine
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import talk

pytestmark = pytest.mark.live

TEXT = "Agents share what they learn, and what they read is counted: 1, 2, 3."


@pytest.fixture
def sampling(live_engine: LiveEngine, database: Path) -> Iterator[LiveGateway]:
    """One that asks about everything it delivers."""
    with served(live_engine, database, "acme", CWM_TOKEN_DRIFT_SHARE="1") as running:
        yield running


async def test_the_drift_is_the_engines_own_count_by_ours(live_engine: LiveEngine) -> None:
    meter = PrometheusMeter()
    async with aclosing(VllmEngine(Engine(vllm_url=live_engine.vllm_url))) as engine:
        counted = BpeTokenCounter().count(TEXT)
        drift = TokenDrift(engine, meter, share=1.0)
        drift.delivered(TEXT, counted)
        await drift.settle()
        model = (await engine.models())[0].id
        own = len(await engine.tokenize(model, TEXT, add_special_tokens=False))
    told = {sample.name: sample.value for sample in meter.samples() if "token_drift" in sample.name}
    assert told["cwm_token_drift_count"] == 1
    assert told["cwm_token_drift_sum"] == pytest.approx(own / counted)


async def test_a_gateway_asks_the_engine_about_what_its_tools_deliver(sampling: LiveGateway) -> None:
    async with talk(sampling.url, sampling.model) as agent:
        await agent.tool("session_list")
        async with httpx2.AsyncClient(trust_env=False) as http, asyncio.timeout(60):
            # Asked in the background: nobody tells when it was answered.
            while not _count((await http.get(f"{sampling.url}/metrics")).text):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def _count(metrics: str) -> float:
    name = "cwm_token_drift_count "
    return sum(float(line.removeprefix(name)) for line in metrics.splitlines() if line.startswith(name))
