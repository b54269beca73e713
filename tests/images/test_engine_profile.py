"""compose.yaml with vLLM and LMCache in it: the main job without anything outside the containers."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from cwm.domain.prefix import restorable_tokens
from tests.images.stack import ENGINE_IMAGE, HERE, ROOT, Stack, docker, images, stack
from tests.live.talk import talk, words

pytestmark = [pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(2400)]

_MODEL = "model"
_CHUNK_SIZE = 64
_ORDINARY_USER = 1000
_READY_SECONDS = 300


@pytest.fixture(scope="module")
def engine_image(image: str) -> str:
    """The CPU engine's image, built from this checkout."""
    arguments = []
    if base := images().get("CWM_PYTHON_IMAGE"):
        wheels = os.environ.get("PIP_FIND_LINKS", "")
        if Path(wheels or "/nowhere").is_dir():
            base = f"{base}-with-wheels"
            docker(
                "buildx", "build", "--load", "--tag", base, "--file", str(HERE / "wheels.Dockerfile"), wheels
            )
        arguments = ["--build-arg", f"PYTHON_IMAGE={base}"]
    context = str(ROOT / "deploy" / "engine")
    docker("buildx", "build", "--load", "--target", "cpu", "--tag", ENGINE_IMAGE, *arguments, context)
    return ENGINE_IMAGE


@pytest.fixture(scope="module")
def model(engine_image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, whose files only their owner, an ordinary user, may read."""
    folder = tmp_path_factory.mktemp("model")
    tools = ROOT / "deploy" / "engine" / "tools"
    volumes = ["--volume", f"{folder}:/out", "--volume", f"{tools}:/tools:ro"]
    docker("run", "--rm", "--user", "0:0", *volumes, engine_image, "/tools/make_tiny_model.py", "/out")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
        shutil.chown(path, _ORDINARY_USER, _ORDINARY_USER)
    return folder


@pytest.fixture(scope="module")
def complete(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The gateways, their stores and the engine, started by the documented command."""
    variables = {
        "COMPOSE_PROFILES": "engine-cpu",
        "CWM_MODEL_FOLDER": str(model),
        "CWM_ENGINE_USER": f"{_ORDINARY_USER}:{_ORDINARY_USER}",
        "CWM_CPU_CACHE_GB": "1",
        "CWM_KV_CACHE_GB": "1",
        "CWM_DISK_CACHE_GB": "2",
        "CWM_KV_VALKEY_MEMORY": "512mb",
    }
    with stack(tmp_path_factory.mktemp("stack"), **variables) as up:
        yield up


def ready(up: Stack) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while (answer := httpx2.get(f"{up.url}/readyz", trust_env=False)).status_code != 200:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.5)


async def test_what_one_gateway_froze_the_other_thaws_after_vllm_and_lmcache_were_killed(
    complete: Stack,
) -> None:
    first, second = complete.replicas()
    second.kill("KILL")
    await asyncio.to_thread(ready, complete)
    async with talk(complete.url, _MODEL) as agent:
        session, ids = await agent.fill(words(700))
        uninterrupted = await agent.complete(ids, max_tokens=32)
        await agent.tool("window_freeze", session_id=session, window_name="kept")

    await asyncio.to_thread(complete.up)
    for container in (first, *complete.containers("vllm-cpu"), *complete.containers("lmcache-cpu")):
        container.kill("KILL")
    await asyncio.to_thread(complete.up, "lmcache-cpu", "vllm-cpu")
    await asyncio.to_thread(ready, complete)

    assert [each.id for each in complete.replicas()] == [second.id]
    async with talk(complete.url, _MODEL) as agent:
        thawed = await agent.tool("window_thaw", window_name="kept")
        continued = await agent.complete(ids, session=thawed["session_id"], max_tokens=32)

    assert thawed["partial"] is False
    assert thawed["receipt"]["tokens_restored"] == restorable_tokens(len(ids), _CHUNK_SIZE)
    assert continued["token_ids"] == uninterrupted["token_ids"]
