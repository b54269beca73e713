"""Sends short requests to two models on three engines through both gateways, and counts those at the wrong model."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import httpx2

from cwm.stack.engine import StackEngine
from cwm_bench.fleet.fleet import Fleet, named
from cwm_bench.fleet.stream import COMPLETIONS
from cwm_bench.harness.figures import Section

REQUESTS: Final = 1_000
_AT_ONCE: Final = 48
_ANSWER_TOKENS: Final = 2
_TIMEOUT_SECONDS: Final = 300.0
_PROMPTS: Final = 20
_SESSION_EVERY: Final = 3


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for ``model``; ``prompt_ids`` as the engine that answered read the prompt, ``ids`` its answer."""

    model: str
    prompt: str
    said_model: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt at a model that was asked past the gateways."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]


References = Mapping[tuple[str, str], Reference]


async def measure(fleet: Fleet) -> tuple[Section, dict[str, Any]]:
    prompts = [f"Number {number}: the harbour of {number * 7} ships" for number in range(_PROMPTS)]
    model_by_engine = {engine.name: engine.model_name for engine in fleet.stack.engines}
    references = {
        (engine.model_name, prompt): await _reference(fleet, engine, prompt)
        for engine in (fleet.small_engines[0], fleet.stack.engines[-1])
        for prompt in prompts
    }
    models = list(dict.fromkeys(model_by_engine.values()))
    fleet.report(f"{REQUESTS:,} requests to {' and '.join(models)}, {_AT_ONCE} at once")
    places, before, started = asyncio.Semaphore(_AT_ONCE), await _counts(fleet), time.perf_counter()
    # A server closes a connection after some idle seconds, and a request at that moment fails.
    limits = httpx2.Limits(max_connections=_AT_ONCE, keepalive_expiry=2)
    async with httpx2.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False, limits=limits) as http:
        urls = [client.url for client in fleet.agents]
        requests = await asyncio.gather(
            *(
                _ask(
                    http,
                    urls[number // len(models) % len(urls)],
                    places,
                    None if number % _SESSION_EVERY else fleet.session(),
                    models[number % len(models)],
                    prompts[number // 2 % len(prompts)],
                )
                for number in range(REQUESTS)
            )
        )
    seconds, after = time.perf_counter() - started, await _counts(fleet)
    counts = {name: after[name] - before[name] for name in after}
    return figures(requests, references, model_by_engine, counts, seconds)


async def _counts(fleet: Fleet) -> dict[str, int]:
    """Requests that each engine has answered, by its own counter."""
    return {each.name: await fleet.answered(each) for each in fleet.stack.engines}


async def _reference(fleet: Fleet, engine: StackEngine, prompt: str) -> Reference:
    body = _body(engine.model_name, prompt) | {"cache_salt": f"reference-{uuid4().hex}"}
    answer = await fleet.http.post(f"{engine.vllm_url}{COMPLETIONS}", json=body)
    choice = answer.raise_for_status().json()["choices"][0]
    return Reference(tuple(choice["prompt_token_ids"]), tuple(choice["token_ids"]))


async def _ask(
    http: httpx2.AsyncClient,
    url: str,
    places: asyncio.Semaphore,
    session: str | None,
    model: str,
    prompt: str,
) -> Asked:
    headers = {} if session is None else named(session)
    async with places:
        response = await http.post(f"{url}{COMPLETIONS}", json=_body(model, prompt), headers=headers)
    if response.status_code != httpx2.codes.OK:
        raise RuntimeError(f"a request was answered {response.status_code}: {response.text[:300]}")
    answer = response.json()
    choice = answer["choices"][0]
    return Asked(
        model, prompt, answer["model"], tuple(choice["prompt_token_ids"]), tuple(choice["token_ids"])
    )


def _body(model: str, prompt: str) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": _ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


def figures(
    requests: Sequence[Asked],
    references: References,
    model_by_engine: Mapping[str, str],
    counts: Mapping[str, int],
    seconds: float,
) -> tuple[Section, dict[str, Any]]:
    """``model_by_engine``: each engine's model; ``counts``: requests that each engine answered meanwhile."""
    counts_by_model = Counter(each.model for each in requests)
    section = Section(
        f"traffic: {len(requests):,} requests to two models on three engines, through two gateways",
        ("engine", "its model", "requests it answered", "requests for this model"),
        [
            (engine, model, counts[engine], counts_by_model[model])
            for engine, model in model_by_engine.items()
        ],
        note=f"{_AT_ONCE} at once, {seconds:.0f} s; every third in a session of its own. An answer is of the wrong model if it names another, or if the engine that gave it read the "
        "prompt with another vocabulary than the model's own engine does; so is each request that an engine counted beyond those for its model",
    )
    return section, {
        "requests": len(requests),
        "wrong_model": wrong(requests, references, model_by_engine, counts),
        "answers_as_alone": sum(each.ids == references[each.model, each.prompt].ids for each in requests),
        "requests_by_engine": dict(counts),
        "requests_a_second": round(len(requests) / seconds, 1),
    }


def wrong(
    requests: Sequence[Asked],
    references: References,
    model_by_engine: Mapping[str, str],
    counts: Mapping[str, int],
) -> int:
    """Answers of a wrong model, by what they say or by the engines' own counters, whichever are more."""
    wrong_count = sum(
        each.said_model != each.model or each.prompt_ids != references[each.model, each.prompt].prompt_ids
        for each in requests
    )
    expected_counts, actual_counts = Counter(each.model for each in requests), Counter[str]()
    for engine, model in model_by_engine.items():
        actual_counts[model] += counts[engine]
    return max(wrong_count, *(abs(actual_counts[model] - expected_counts[model]) for model in actual_counts))
