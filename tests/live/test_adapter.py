"""A LoRA adapter beside its base on the real engine: each has KV of its own, and an adapter's windows come back exactly."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cwm.domain.prefix import restorable_tokens
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine, running
from tests.live.talk import Talk, cached, talk, words

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

_ADAPTER, _RANK = "poet", 8
# Of the tiny model: the width of what these layers read, and of what they write.
_WIDTHS = {"q_proj": (256, 256), "v_proj": (256, 128)}
_LAYERS = 2
_ANSWER_TOKENS = 12


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    folder = tmp_path_factory.mktemp("adapter")
    write_adapter(folder / _ADAPTER)
    lora = f"--enable-lora --max-lora-rank {_RANK} --lora-modules {_ADAPTER}={folder / _ADAPTER}"
    with running(folder, "tiny", engine_args=lora) as started:
        yield started


@pytest.fixture(scope="module")
def front(engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    with served(engine, tmp_path_factory.mktemp("gateway") / "cwm.db", "acme") as running_gateway:
        yield running_gateway


def write_adapter(folder: Path) -> None:
    """Random weights that are large enough to change every answer."""
    chance = random.Random(7)
    shapes: dict[str, list[int]] = {}
    for layer in range(_LAYERS):
        for module, (read, written) in _WIDTHS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            shapes |= {f"{name}.lora_A.weight": [_RANK, read], f"{name}.lora_B.weight": [written, _RANK]}
    header: dict[str, Any] = {}
    weights = array("f")
    for name, (rows, columns) in shapes.items():
        start = 4 * len(weights)
        weights.extend(chance.gauss(0, 0.2) for _ in range(rows * columns))
        header[name] = {
            "dtype": "F32",
            "shape": [rows, columns],
            "data_offsets": [start, 4 * len(weights)],
        }
    head = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(
        len(head).to_bytes(8, "little") + head + weights.tobytes()
    )
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": _RANK,
        "lora_alpha": 2 * _RANK,
        "target_modules": list(_WIDTHS),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


async def directly(client: Talk, engine: LiveEngine, model: str, prompt: list[int], salt: str) -> Any:
    """The first choice of an engine that is asked past the gateway, with ``usage`` in it."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": _ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "cache_salt": salt,
    }
    answer = await client.http.post(f"{engine.vllm_url}/v1/completions", json=body)
    document = answer.raise_for_status().json()
    return {**document["choices"][0], "usage": document["usage"]}


async def test_an_adapter_and_its_base_are_both_listed(front: LiveGateway) -> None:
    async with talk(front.url, front.model) as client:
        listed = (await client.http.get(f"{front.url}/v1/models")).raise_for_status().json()["data"]
    assert {model["id"] for model in listed} == {front.model, _ADAPTER}


async def test_a_session_on_an_adapter_and_one_on_its_base_never_share_kv(
    engine: LiveEngine, front: LiveGateway
) -> None:
    prompt = words(600)
    async with talk(front.url, front.model) as base, talk(front.url, _ADAPTER) as adapter:
        asked = [(client, f"s_{uuid4().hex[:8]}") for client in (base, adapter)]
        cold = [
            await client.complete(prompt, session=session, max_tokens=_ANSWER_TOKENS)
            for client, session in asked
        ]
        computed = [
            (await directly(base, engine, client.model, prompt, uuid4().hex))["token_ids"]
            for client, _ in asked
        ]
        await engine.forget_gpu_cache()
        loaded = [await client.complete(prompt, max_tokens=_ANSWER_TOKENS) for client, _ in asked]
    assert [cached(answer) for answer in cold] == [0, 0]
    assert computed[0] != computed[1]
    assert [answer["token_ids"] for answer in cold] == computed
    assert all(cached(answer) >= restorable_tokens(len(prompt), engine.chunk_size) for answer in loaded)
    assert [answer["token_ids"] for answer in loaded] == computed


@pytest.mark.parametrize("first", ["base", "adapter"])
async def test_under_one_salt_an_adapter_and_its_base_load_each_their_own(
    engine: LiveEngine, front: LiveGateway, first: str
) -> None:
    prompt, salt = words(600), uuid4().hex
    earlier, later = (front.model, _ADAPTER) if first == "base" else (_ADAPTER, front.model)
    async with talk(front.url, front.model) as client:
        right = [await directly(client, engine, model, prompt, uuid4().hex) for model in (earlier, later)]
        await directly(client, engine, earlier, prompt, salt)
        await engine.forget_gpu_cache()
        other = await directly(client, engine, later, prompt, salt)
        await engine.forget_gpu_cache()
        own = await directly(client, engine, earlier, prompt, salt)
    assert right[0]["token_ids"] != right[1]["token_ids"]
    assert (cached(other), other["token_ids"]) == (0, right[1]["token_ids"])
    assert cached(own) >= restorable_tokens(len(prompt), engine.chunk_size)
    assert own["token_ids"] == right[0]["token_ids"]


async def test_a_window_of_an_adapter_comes_back_exactly(engine: LiveEngine, front: LiveGateway) -> None:
    async with talk(front.url, _ADAPTER) as client:
        session, ids = await client.fill(words(500))
        prompt = [*ids, *words(20)]
        undisturbed = await directly(client, engine, _ADAPTER, prompt, uuid4().hex)
        frozen = await client.tool("window_freeze", session_id=session, window_name="verse")
        await engine.forget_gpu_cache()
        await engine.drop_l1()
        thawed = await client.tool("window_thaw", window_name="verse")
        answer = await client.complete(prompt, session=thawed["session_id"], max_tokens=_ANSWER_TOKENS)
    assert frozen["durability"] == "durable"
    assert (thawed["verification"], thawed["partial"]) == ("exact", False)
    assert thawed["receipt"]["tokens_restored"] == restorable_tokens(len(ids), engine.chunk_size)
    assert cached(answer) >= restorable_tokens(len(ids), engine.chunk_size)
    assert answer["token_ids"] == undisturbed["token_ids"]


async def test_a_session_of_an_adapter_does_not_go_on_with_its_base(front: LiveGateway) -> None:
    async with talk(front.url, _ADAPTER) as adapter, talk(front.url, front.model) as base:
        session, ids = await adapter.fill(words(200))
        answer = await base.http.post(
            f"{front.url}/v1/completions",
            json={"model": base.model, "prompt": [*ids, *words(4)], "max_tokens": 1},
            headers={"CWM-Session-Id": session},
        )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "CWM-1003")
    assert answer.json()["error"]["context"]["model"] == _ADAPTER
