from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.adapters.vllm.fake_vllm import FakeVllm, fake_vllm
from tests.transport.llm.gateway import Gateway, gateway, settings_for


@pytest.fixture
async def vllm() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        yield fake


@pytest.fixture
async def cwm(vllm: FakeVllm, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway(settings_for(vllm.url), tmp_path) as running:
        yield running
