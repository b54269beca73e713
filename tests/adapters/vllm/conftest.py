from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cwm.adapters.vllm.client import VllmEngine
from cwm.settings import Engine
from tests.adapters.vllm.fake_vllm import FakeVllm, fake_vllm


@pytest.fixture
async def vllm() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        yield fake


@pytest.fixture
async def engine(vllm: FakeVllm) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(Engine(vllm_url=vllm.url, vllm_api_key="k1", request_timeout_seconds=20))
    yield engine
    await engine.aclose()
