"""Looks at KV: what is sent to vLLM for one, and what is made of its answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from cwm.adapters.vllm import wire
from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.errors import EngineResponseError
from cwm.domain.look import CANDIDATES, Look, places_of
from cwm.ports.engine import Generation, LookAnswer
from tests.adapters.vllm.fake_vllm import MODEL, Behaviour, FakeVllm

IDS: Final = tuple(range(1_000, 1_098))
CONTEXT: Final = Generation(MODEL, IDS, "salt-1", max_tokens=1)
PLACES: Final = (33, 65, 97)


def choice(index: int, **top: float) -> dict[str, Any]:
    likeliest = {name.replace("_id_", "_id:"): value for name, value in top.items()}
    logprobs = {"tokens": [next(iter(likeliest))], "top_logprobs": [likeliest]}
    return {"index": index, "text": " a", "logprobs": logprobs, "finish_reason": "length"}


ANSWER: Final[dict[str, Any]] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "choices": [
        choice(2, token_id_9=-0.25),
        choice(0, token_id_7=-0.5, token_id_8=-1.5),
        choice(1, token_id_8=-0.75),
    ],
    "usage": {
        "prompt_tokens": 195,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 96},
    },
    "kv_transfer_params": None,
}


def test_a_look_sends_the_context_up_to_each_place_and_loads_and_stores_nothing() -> None:
    body = json.loads(wire.look_body(CONTEXT, PLACES))
    assert body.pop("prompt") == [list(IDS[:place]) for place in PLACES]
    assert body == {
        "model": MODEL,
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": CANDIDATES,
        "cache_salt": "salt-1",
        "return_tokens_as_token_ids": True,
        "kv_transfer_params": {"cwm.load_tokens": 0, "lmcache.max_offload_tokens": 0},
    }


def test_a_look_names_the_weights_that_it_expects() -> None:
    body = json.loads(wire.look_body(replace(CONTEXT, weights="w-1"), PLACES))
    assert body["kv_transfer_params"]["cwm.weights"] == "w-1"


@pytest.mark.parametrize("places", [(1,), (98,), (2, 98)])
def test_places_may_be_anywhere_in_the_context(places: tuple[int, ...]) -> None:
    prompts = json.loads(wire.look_body(CONTEXT, places))["prompt"]
    assert prompts == [list(IDS[:place]) for place in places]


def test_the_body_of_a_look_at_a_long_context_has_no_more_than_its_prompts() -> None:
    ids = tuple(100_000 + token for token in range(50_000))
    places = places_of(len(ids), 64, 64)
    body = wire.look_body(replace(CONTEXT, token_ids=ids), places)
    assert len(places) == 64
    of_prompts = sum(place * len("100000,") for place in places) + len(places) * len("[],")
    assert len(body) < of_prompts + 1_000
    assert [len(prompt) for prompt in json.loads(body)["prompt"]] == list(places)


def test_an_answer_is_a_look_in_the_order_of_its_places_whatever_order_they_ended_in() -> None:
    assert wire.look(ANSWER, PLACES) == LookAnswer(
        Look(PLACES, ({7: -0.5, 8: -1.5}, {8: -0.75}, {9: -0.25})), cached_tokens=96
    )


def test_an_answer_that_counts_no_cached_tokens_had_none() -> None:
    usage = {**ANSWER["usage"], "prompt_tokens_details": None}
    assert wire.look({**ANSWER, "usage": usage}, PLACES).cached_tokens == 0


@pytest.mark.parametrize("count", [2, 4])
def test_an_answer_with_another_number_of_choices_is_none(count: int) -> None:
    with pytest.raises(ValueError, match="one choice for each prompt"):
        wire.look({**ANSWER, "choices": [choice(at, token_id_7=-0.5) for at in range(count)]}, PLACES)


async def test_the_engine_is_looked_at_with_one_request(engine: VllmEngine, vllm: FakeVllm) -> None:
    answer = await engine.look(CONTEXT, PLACES)
    assert (answer.look.places, answer.cached_tokens) == (PLACES, 96)
    assert [top[IDS[place - 1]] for place, top in zip(PLACES, answer.look.top, strict=True)] == [-0.5] * 3
    assert [len(top) for top in answer.look.top] == [CANDIDATES] * 3
    (sent,) = vllm.turns
    assert (sent.target, sent.json["prompt"][0]) == ("/v1/completions", list(IDS[:33]))


async def test_an_answer_that_cannot_be_read_is_the_engines_error(engine: VllmEngine, vllm: FakeVllm) -> None:
    vllm.behaviour = Behaviour.ANSWERS_GARBAGE
    with pytest.raises(EngineResponseError):
        await engine.look(CONTEXT, PLACES)


async def test_the_room_of_the_engines_cache_is_its_blocks_times_their_size(
    engine: VllmEngine, vllm: FakeVllm
) -> None:
    assert await engine.kv_room() == 128 * 64
    assert [seen.target for seen in vllm.seen] == ["/metrics"]


@pytest.mark.parametrize(
    ("labels", "room"),
    [
        ('block_size="64",cache_dtype="auto",num_gpu_blocks="128"', 8_192),
        ('block_size="64",num_gpu_blocks="None"', None),
        ('cache_dtype="auto"', None),
    ],
)
def test_an_engine_that_does_not_say_how_many_blocks_it_has_has_no_known_room(
    labels: str, room: int | None
) -> None:
    exposition = f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"
    assert wire.kv_room(exposition) == room
    assert wire.kv_room("") is None


def test_what_is_dropped_first_is_said_and_what_came_of_it_is_read() -> None:
    body = json.loads(wire.completion_body(replace(CONTEXT, drop_after=64), stream=False))
    assert body["kv_transfer_params"]["cwm.drop_after"] == 64
    transfer = {"cwm.loaded_tokens": 32, "cwm.resting_tokens": 64, "cwm.dropped_blocks": 3}
    done = wire.completion(
        {
            "choices": [{"text": "a", "token_ids": [7], "finish_reason": "length"}],
            "usage": ANSWER["usage"],
            "kv_transfer_params": transfer,
        },
        1,
    )
    assert (done.loaded_tokens, done.resting_tokens, done.dropped_blocks) == (32, 64, 3)
