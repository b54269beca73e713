"""A model whose weights are replaced under its path, as a fine-tune is rolled out."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from uuid import uuid4

import pytest

from cwm.adapters.vllm.client import VllmEngine
from cwm.ports.engine import Generation
from cwm.settings import Engine
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine, running
from tests.live.talk import cached, talk, words

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

_PROMPT_TOKENS, _ANSWER_TOKENS = 1106, 8


@pytest.fixture
def own_engine(live_engine: LiveEngine, tmp_path: Path) -> Iterator[LiveEngine]:
    """An engine that serves a copy of the model."""
    folder = tmp_path / "model"
    shutil.copytree(live_engine.model_root, folder)
    with running(tmp_path, str(folder)) as engine:
        yield engine


@pytest.fixture
def gateway(own_engine: LiveEngine, tmp_path: Path) -> Iterator[LiveGateway]:
    with served(own_engine, tmp_path / "cwm.db", "acme") as running_gateway:
        yield running_gateway


def replace_weights(model: Path) -> None:
    """Other weights of the same shape, in a file of the same size."""
    file = model / "model.safetensors"
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    weights = array("f", content[start:])
    for at in range(0, len(weights), 3):
        weights[at] *= 0.7
    file.write_bytes(content[:start] + weights.tobytes())


async def computed(engine: LiveEngine, prompt: list[int]) -> tuple[int, ...]:
    """What this engine answers with nothing stored."""
    generation = Generation(
        engine.model_name, tuple(prompt), uuid4().hex, _ANSWER_TOKENS, {"temperature": 0, "ignore_eos": True}
    )
    async with aclosing(VllmEngine(Engine(vllm_url=engine.vllm_url))) as vllm:
        return (await vllm.complete(generation)).token_ids


async def test_neither_a_turn_nor_a_thaw_uses_kv_of_the_weights_that_were_there_before(
    own_engine: LiveEngine, gateway: LiveGateway
) -> None:
    prompt = words(_PROMPT_TOKENS)
    async with talk(gateway.url, gateway.model) as agent:
        session, ids = await agent.fill(words(_PROMPT_TOKENS))
        await agent.tool("window_freeze", session_id=session, window_name="w")
        before = await agent.complete(prompt, max_tokens=_ANSWER_TOKENS)

        replace_weights(Path(own_engine.model_root))
        own_engine.kill("vllm")
        own_engine.wait_ready()

        after = await agent.complete(prompt, max_tokens=_ANSWER_TOKENS)
        assert cached(after) == 0
        assert after["token_ids"] != before["token_ids"]
        assert tuple(after["token_ids"]) == await computed(own_engine, prompt)
        thawed = await agent.tool("window_thaw", window_name="w")
        assert (thawed["token_count"], thawed["receipt"]["tokens_restored"]) == (len(ids), 0)
        (change,) = thawed["receipt"]["engine_changes"]
        assert change["field"] == "weights_digest"
        assert f"weights_digest was {change['frozen']}, is {change['now']}" in thawed["warning"]
        assert thawed["partial"] is True
