"""A model that embeds, on a vLLM of its own beside the one that generates: its requests pass, and it has no sessions."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import RefusedError, talk, words
from tests.postgres import free_port

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

_EMBEDDER, _WIDTH = "embedder", 256
_START_SECONDS = 300
_LINES = ["the lock is on row 41", "a cat sleeps"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A gateway in front of the engine that generates and of the one that embeds."""

    front: LiveGateway
    embedder_url: str


@pytest.fixture(scope="module")
def embedder_url(live_engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The tiny model's last layer as an embedding, on a vLLM without LMCache."""
    port = free_port()
    folder = tmp_path_factory.mktemp("embedder")
    commands = live_engine.engines[0].commands
    arguments = [
        commands.environment.python, "-m", "vllm.entrypoints.openai.api_server",
        "--model", live_engine.model_root, "--served-model-name", _EMBEDDER,
        "--runner", "pooling", "--convert", "embed", "--dtype", "float32", "--max-model-len", "1024",
        "--host", "127.0.0.1", "--port", str(port), "--enforce-eager",
    ]  # fmt: skip
    environ = {**os.environ, **commands.vllm_variables()}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(arguments, env=environ, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, process, folder / "log")
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            if httpx2.get(f"{url}/health", timeout=1).status_code == httpx2.codes.OK:
                return
        except httpx2.TransportError:
            process.poll()
    raise AssertionError(log.read_text()[-2000:])


@pytest.fixture(scope="module")
def pair(
    live_engine: LiveEngine, embedder_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("gateway")
    config = folder / "cwm.yaml"
    config.write_text(
        "engines:\n"
        f"  embeds: {{url: '{embedder_url}', lmcache: none}}\n"
        f"  talks: {{url: '{live_engine.vllm_url}', lmcache: '{live_engine.lmcache_url}'}}\n"
    )
    with served(live_engine, folder / "cwm.db", "acme", CWM_CONFIG=str(config)) as front:
        yield Pair(front, embedder_url)


async def _embedded(http: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    answer = await http.post(f"{url}/v1/embeddings", json={"model": _EMBEDDER, "input": _LINES})
    return dict(answer.raise_for_status().json())


async def test_embeddings_pass_as_the_engine_gives_them(pair: Pair) -> None:
    async with talk(pair.front.url, _EMBEDDER) as client:
        through = await _embedded(client.http, pair.front.url)
        direct = await _embedded(client.http, pair.embedder_url)
    vectors = [entry["embedding"] for entry in through["data"]]
    assert [len(vector) for vector in vectors] == [_WIDTH, _WIDTH]
    assert vectors[0] != vectors[1]
    for vector, expected in zip(vectors, direct["data"], strict=True):
        assert math.dist(vector, expected["embedding"]) < 1e-4
    assert through["usage"] == direct["usage"]
    assert through["usage"]["total_tokens"] > len(_LINES)


async def test_both_models_are_listed_and_a_request_without_a_name_generates(pair: Pair) -> None:
    async with talk(pair.front.url, pair.front.model) as client:
        listed = (await client.http.get(f"{pair.front.url}/v1/models")).raise_for_status().json()["data"]
        opened = await client.tool("session_create")
    assert {model["id"] for model in listed} == {_EMBEDDER, pair.front.model}
    assert opened["model"] == pair.front.model


async def test_a_model_that_embeds_has_no_session_no_turn_and_no_window(pair: Pair) -> None:
    async with talk(pair.front.url, _EMBEDDER) as client:
        with pytest.raises(RefusedError) as no_session:
            await client.tool("session_create", session_id="s-embeds", model=_EMBEDDER)
        turns = [
            await client.http.post(
                f"{pair.front.url}{path}",
                json={"model": _EMBEDDER, "max_tokens": 1, **body},
                headers={"CWM-Session-Id": "s-embeds"},
            )
            for path, body in (
                ("/v1/completions", {"prompt": words(40)}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
                ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}]}),
            )
        ]
        with pytest.raises(RefusedError) as no_window:
            await client.tool("window_freeze", session_id="s-embeds", window_name="w")
        listed = (await client.tool("session_list"))["sessions"]
    assert no_session.value.code == "CWM-1003"
    assert "/v1/embeddings" in no_session.value.context["serves"]
    for turn in turns:
        assert (turn.status_code, turn.json()["error"]["code"]) == (400, "CWM-1003")
        assert f"'{_EMBEDDER}' does not generate. It is for requests to /v1/embeddings" in turn.text
    assert no_window.value.code == "CWM-2001"
    assert _EMBEDDER not in {session["model"] for session in listed}


async def test_the_model_that_generates_freezes_and_thaws_beside_it(pair: Pair) -> None:
    async with talk(pair.front.url, pair.front.model) as client:
        session, _ = await client.fill(words(200))
        await _embedded(client.http, pair.front.url)
        await client.tool("window_freeze", session_id=session, window_name="beside")
        thawed = await client.tool("window_thaw", window_name="beside")
    assert (thawed["verification"], thawed["partial"]) == ("exact", False)
