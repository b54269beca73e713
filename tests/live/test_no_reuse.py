"""Engines on which no KV is reused: a model with latent attention (MLA), for which vLLM has no prefix cache on a CPU, and a block that
does not divide LMCache's chunk.

On such an MLA engine a prompt beside others goes on otherwise than alone, so one is asked at a time.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from cwm import shipped
from cwm.adapters.vllm.client import VllmEngine
from cwm.ports.engine import Completion, Generation
from cwm.settings import Engine
from cwm.stack.commands import Commands
from cwm.stack.environment import EngineEnvironment, Pins
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine, engine_home, running
from tests.live.talk import cached, talk, words
from tests.live.test_doctor import by_name, examine

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

_ANSWER_TOKENS = 12
_OFF = "vLLM's prefix cache is off"


@pytest.fixture(scope="module")
def mla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    folder = tmp_path_factory.mktemp("mla")
    pins = Pins.for_device("cpu")
    environment = EngineEnvironment(engine_home() / "engine" / f"{pins.device}-{pins.short_hash}")
    script = shipped.folder("engine") / "tools" / "make_mla_model.py"
    subprocess.run([environment.python, str(script), str(folder / "tiny-mla")], check=True, timeout=300)
    with running(folder, str(folder / "tiny-mla")) as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(mla: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    with served(mla, tmp_path_factory.mktemp("gateway") / "cwm.db", "acme") as running_gateway:
        yield running_gateway


async def ask(engine: LiveEngine, prompt: list[int], salt: str, **more: Any) -> Completion:
    sampling = {"temperature": 0, "ignore_eos": True}
    request = Generation(engine.model_name, tuple(prompt), salt, _ANSWER_TOKENS, sampling, **more)
    async with aclosing(VllmEngine(Engine(vllm_url=engine.vllm_url))) as vllm:
        return await vllm.complete(request)


async def computed(engine: LiveEngine, prompt: list[int]) -> list[int]:
    """How the engine goes on with nothing stored."""
    return list((await ask(engine, prompt, uuid4().hex)).token_ids)


async def lookups(engine: LiveEngine) -> float:
    """Tokens that vLLM has asked LMCache for."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        lines = (await http.get(f"{engine.lmcache_url}/metrics")).text.splitlines()
    name = "lmcache_mp_lookup_requested_tokens_total"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def test_the_engine_says_why_it_reuses_nothing_and_what_its_blocks_are(mla: LiveEngine) -> None:
    prompt = words(200)
    first = await ask(mla, prompt, "a-salt", tell_loaded=True)
    again = await ask(mla, prompt, "a-salt", tell_loaded=True)
    assert first.no_reuse.startswith(_OFF)
    assert (first.block_size, first.world_size) == (16, 1)
    assert first.weights
    assert (first.fingerprint or "").startswith("kv-")
    assert (again.cached_tokens, again.loaded_tokens) == (0, 0)
    assert again.token_ids == first.token_ids
    assert await lookups(mla) == 0
    assert mla.logged("vllm", _OFF) == 1 + mla.restarts("vllm")


async def test_a_freeze_and_a_thaw_say_why_and_the_next_turn_goes_on_as_a_cold_run_alone(
    mla: LiveEngine, gateway: LiveGateway
) -> None:
    async with talk(gateway.url, gateway.model) as agent:
        session, ids = await agent.fill(words(400))
        frozen = await agent.tool("window_freeze", session_id=session, window_name="w")
        assert (frozen["durability"], frozen["block_count"]) == ("durable", 0)
        assert frozen["warning"].startswith(_OFF)

        mla.kill("vllm")
        mla.wait_ready()

        thawed = await agent.tool("window_thaw", window_name="w")
        receipt = thawed["receipt"]
        assert (receipt["tokens_restored"], receipt["tokens_recomputed"]) == (0, len(ids))
        assert thawed["warning"].startswith(_OFF)
        assert thawed["verification"] == "skipped"
        assert receipt["verification"]["reason"].startswith(_OFF)
        prompt = ids + words(20)
        went_on = await agent.complete(prompt, session=thawed["session_id"], max_tokens=_ANSWER_TOKENS)
        assert went_on["token_ids"] == await computed(mla, prompt)
        assert cached(went_on) == 0
    assert await lookups(mla) == 0


async def test_an_ordinary_turn_after_a_restart_goes_on_as_a_cold_run_alone(
    mla: LiveEngine, gateway: LiveGateway
) -> None:
    async with talk(gateway.url, gateway.model) as agent:
        session, ids = await agent.fill(words(400))
        mla.kill("vllm")
        mla.wait_ready()
        prompt = ids + words(20)
        answer = await agent.complete(prompt, session=session, max_tokens=_ANSWER_TOKENS)
        assert answer["token_ids"] == await computed(mla, prompt)


async def test_vllm_outlives_a_sigkill_of_lmcache(mla: LiveEngine, gateway: LiveGateway) -> None:
    pids, restarts = mla.pids("vllm"), mla.restarts("vllm")
    async with talk(gateway.url, gateway.model) as agent:
        with mla.held_down("lmcache"):
            prompt = words(300)
            answer = await agent.complete(prompt, max_tokens=_ANSWER_TOKENS)
            assert answer["token_ids"] == await computed(mla, prompt)
        answer = await agent.complete(prompt, max_tokens=_ANSWER_TOKENS)
        assert answer["token_ids"] == await computed(mla, prompt)
    assert (mla.pids("vllm"), mla.restarts("vllm")) == (pids, restarts)


async def test_the_doctor_and_the_health_of_the_gateway_say_why(
    mla: LiveEngine, gateway: LiveGateway, tmp_path: Path
) -> None:
    answer, status = await examine(tmp_path, mla)
    attached = by_name(answer)["attached"]
    assert (attached["status"], status) == ("warn", 0)
    assert attached["message"].startswith(_OFF)
    async with talk(gateway.url, gateway.model) as agent:
        await agent.complete(words(40), max_tokens=1)
        health = await agent.tool("health_check", component="kv_store")
    assert health["components"][0]["message"].startswith(_OFF)


@pytest.fixture
def misfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveEngine]:
    """An LMCache whose chunk is one and a half blocks of vLLM."""
    arguments = Commands.lmcache_arguments

    def with_another_chunk(commands: Commands) -> list[str]:
        changed = arguments(commands)
        changed[changed.index("--chunk-size") + 1] = str(commands.plan.chunk_size * 3 // 2)
        return changed

    monkeypatch.setattr(Commands, "lmcache_arguments", with_another_chunk)
    with running(tmp_path, "tiny") as engine:
        yield engine


async def test_an_engine_whose_block_does_not_divide_the_chunk_starts_and_reuses_nothing_of_lmcache(
    misfit: LiveEngine, tmp_path: Path
) -> None:
    prompt, block = words(200), misfit.chunk_size
    with served(misfit, tmp_path / "cwm.db", "acme") as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            session, ids = await agent.fill(prompt)
            frozen = await agent.tool("window_freeze", session_id=session, window_name="w")
            assert frozen["block_count"] == 0
            assert (
                f"{block} tokens, which do not divide LMCache's chunk of {block * 3 // 2}"
                in frozen["warning"]
            )
            again = await agent.complete(ids, session=None, max_tokens=1)
            assert cached(again) >= 200 // block * block, "vLLM has its own cache"
            misfit.kill("vllm")
            misfit.wait_ready()
            thawed = await agent.tool("window_thaw", window_name="w")
            assert thawed["receipt"]["tokens_recomputed"] == len(ids)
            assert "do not divide" in thawed["warning"]
    assert await lookups(misfit) == 0
