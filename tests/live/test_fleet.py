"""Two real engines behind one gateway: what one of them stored is the other's when it is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from redis.asyncio import Redis

from cwm.domain.prefix import restorable_tokens
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine, running
from tests.live.talk import RefusedError, Talk, cached, talk, words

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

_BOUND_SECONDS = 60
_ANSWER_TOKENS = 24
_STREAM_TOKENS = 400


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    """Two engines of one model, of which the second one schedules otherwise."""
    otherwise = {"serving_variables": {"CWM_ENGINE_ARGS": "--max-num-seqs 8"}}
    with running(tmp_path_factory.mktemp("fleet"), "tiny", otherwise) as engine:
        yield engine


@pytest.fixture(scope="module")
def front(fleet: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    config = folder / "cwm.yaml"
    entries = [
        f"  {each.name}: {{url: '{each.vllm_url}', lmcache: '{each.lmcache_url}'}}\n"
        for each in fleet.engines
    ]
    config.write_text("engines:\n" + "".join(entries))
    with served(fleet, folder / "cwm.db", "acme", CWM_CONFIG=str(config)) as running_gateway:
        yield running_gateway


@dataclass(frozen=True, slots=True)
class Moves:
    """What became of a session that was moved by hand, and of one whose engine was drained."""

    moved: dict[str, Any]
    drained: dict[str, Any]
    answers: list[dict[str, Any]]
    """The next turn of each."""
    undisturbed: list[list[int]]
    context_tokens: list[int]
    engines: list[str]
    """Where each is after that turn."""


@pytest.fixture(scope="module")
def moves(fleet: LiveEngine, front: LiveGateway) -> Moves:
    return asyncio.run(_moves(fleet, front))


async def _moves(fleet: LiveEngine, front: LiveGateway) -> Moves:
    one, two = fleet.engines
    async with talk(front.url, front.model) as client:
        sessions = [await client.fill(words(count)) for count in (500, 400)]
        prompts = [[*ids, *words(20)] for _, ids in sessions]
        undisturbed = [await _directly(client, one.vllm_url, prompt) for prompt in prompts]
        moved = {}
        for target in (one.name, two.name):
            moved = await client.tool("session_move", session_id=sessions[0][0], engine=target)
        await client.tool("session_move", session_id=sessions[1][0], engine=one.name)
        drained = await client.tool("engine_drain", engine=one.name)
        answers = [
            await client.complete(prompt, session=session, max_tokens=_ANSWER_TOKENS)
            for (session, _), prompt in zip(sessions, prompts, strict=True)
        ]
        counts = (await client.tool("engine_list"))["engines"]
        await client.tool("engine_drain", engine=one.name, undo=True)
    return Moves(
        moved,
        drained,
        answers,
        undisturbed,
        [len(ids) for _, ids in sessions],
        [each["name"] for each in counts if each["sessions"]],
    )


@dataclass(frozen=True, slots=True)
class Outage:
    """What clients saw after the first engine was killed, with its LMCache, and while it stayed away."""

    stream: str
    """An answer that the first engine had begun."""
    undisturbed_stream: list[int]
    answer: dict[str, Any]
    undisturbed: list[int]
    context_tokens: int
    loaded_tokens: float
    """What the other engine loaded from its LMCache for the session's next turn."""
    thawed: dict[str, Any]
    window_tokens: int
    frozen_again: dict[str, Any]
    ready: httpx2.Response
    models: list[str]


@pytest.fixture(scope="module")
def outage(fleet: LiveEngine, front: LiveGateway, moves: Moves) -> Outage:
    return asyncio.run(_outage(fleet, front))


async def _outage(fleet: LiveEngine, front: LiveGateway) -> Outage:
    one, two = fleet.engines
    async with talk(front.url, front.model) as client:
        session = "speaks_on"
        await client.tool("session_create", session_id=session)
        await client.tool("session_move", session_id=session, engine=one.name)
        _, ids = await client.fill(words(600), session)
        to_freeze, window_ids = await client.fill(words(300))
        await client.tool("window_freeze", session_id=to_freeze, window_name="w")
        prompt = [*ids, *words(20)]
        undisturbed = await _directly(client, one.vllm_url, prompt)
        speaking, spoken = asyncio.Event(), words(100)
        undisturbed_stream = await _directly(client, one.vllm_url, spoken, _STREAM_TOKENS)
        (await client.complete(spoken, session="speaks"))
        await client.tool("session_move", session_id="speaks", engine=one.name)
        await _stored(client, one.lmcache_url)
        stream = asyncio.create_task(_stream(client, spoken, speaking))
        await speaking.wait()
        with fleet.held_down("vllm", "lmcache"):
            streamed = await stream
            before = await _loaded(client, two.vllm_url)
            answer = await _answered(client, prompt, session)
            loaded = await _loaded(client, two.vllm_url) - before
            ready = await client.http.get(f"{front.url}/readyz")
            models = await client.http.get(f"{front.url}/v1/models")
            thawed = await client.tool("window_thaw", window_name="w")
            frozen = await client.tool("window_freeze", session_id=session, window_name="again")
    return Outage(
        streamed,
        undisturbed_stream,
        answer,
        undisturbed,
        len(ids),
        loaded,
        thawed,
        len(window_ids),
        frozen,
        ready,
        [model["id"] for model in models.raise_for_status().json()["data"]],
    )


async def _stream(client: Talk, prompt: list[int], speaking: asyncio.Event) -> str:
    """A long answer, as it arrives; says when it has begun."""
    body = {
        "model": client.model,
        "prompt": prompt,
        "max_tokens": _STREAM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }
    text = ""
    headers = {"CWM-Session-Id": "speaks"}
    async with client.http.stream(
        "POST", f"{client.url}/v1/completions", json=body, headers=headers
    ) as answer:
        async for piece in answer.aiter_text():
            text += piece
            if text.count("data: ") > 3:
                speaking.set()
    return text


async def _directly(client: Talk, vllm_url: str, prompt: list[int], count: int = _ANSWER_TOKENS) -> list[int]:
    """The answer of an engine that is asked past the gateway, with a cache of its own."""
    body = {
        "model": client.model,
        "prompt": prompt,
        "max_tokens": count,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "cache_salt": "undisturbed",
    }
    answer = await client.http.post(f"{vllm_url}/v1/completions", json=body)
    return list(answer.raise_for_status().json()["choices"][0]["token_ids"])


async def _answered(client: Talk, prompt: list[int], session: str) -> dict[str, Any]:
    """The session's next turn, asked again as a client does while the gateway says that it may be."""
    async with asyncio.timeout(_BOUND_SECONDS):
        while True:
            try:
                return await client.complete(prompt, session=session, max_tokens=_ANSWER_TOKENS)
            except httpx2.HTTPStatusError as refused:
                if refused.response.status_code not in {502, 503}:
                    raise


@dataclass(frozen=True, slots=True)
class WithoutCoordinator:
    """What clients saw while the one coordinator was down."""

    answer: dict[str, Any]
    """The next turn of a session that was there before."""
    context_tokens: int
    new_answers: list[dict[str, Any]]
    """First turns of new sessions."""
    thawed: dict[str, Any]
    window_tokens: int
    moved: dict[str, Any]
    refused: dict[str, str]
    """Tools that need the coordinator, and the codes that they ended with."""
    ready: httpx2.Response


@pytest.fixture(scope="module")
def without_coordinator(fleet: LiveEngine, front: LiveGateway) -> WithoutCoordinator:
    return asyncio.run(_without_coordinator(fleet, front))


async def _without_coordinator(fleet: LiveEngine, front: LiveGateway) -> WithoutCoordinator:
    async with talk(front.url, front.model) as client:
        session, ids = await client.fill(words(300))
        to_freeze, window_ids = await client.fill(words(200))
        await client.tool("window_freeze", session_id=to_freeze, window_name="before")
        one, two = fleet.engines
        await client.tool("session_move", session_id=session, engine=one.name)
        refused = {}
        with fleet.held_down("coordinator"):
            answer = await client.complete([*ids, *words(20)], session=session)
            new_answers = [await client.complete(words(80), session=f"alone{i}") for i in range(2)]
            thawed = await client.tool("window_thaw", window_name="before")
            moved = await client.tool("session_move", session_id=session, engine=two.name)
            for tool, arguments in (
                ("window_freeze", {"session_id": session, "window_name": "during"}),
                ("window_clone", {"source_window": "before", "target_window": "copy"}),
                ("window_delete", {"window_name": "before", "force": True}),
            ):
                try:
                    refused[tool] = str(await client.tool(tool, **arguments))
                except RefusedError as error:
                    refused[tool] = error.code
            ready = await client.http.get(f"{front.url}/readyz")
    return WithoutCoordinator(answer, len(ids), new_answers, thawed, len(window_ids), moved, refused, ready)


async def _stored(client: Talk, lmcache_url: str) -> None:
    """Wait until an LMCache server has stored all that it was given."""
    async with asyncio.timeout(_BOUND_SECONDS):
        while True:
            status = (await client.http.get(f"{lmcache_url}/status")).json()["storage_manager"]
            left = [
                controller["pending_keys_count"] + controller["in_flight_task_count"]
                for controller in status["store_controllers"].values()
            ]
            if not sum(left):
                return


async def _loaded(client: Talk, vllm_url: str) -> float:
    """Prompt tokens that vLLM has loaded from its LMCache."""
    text = (await client.http.get(f"{vllm_url}/metrics")).text
    name = "vllm:external_prefix_cache_hits_total"
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


async def test_engines_that_differ_in_how_they_schedule_are_one_deployment(fleet: LiveEngine) -> None:
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:
        answers = [
            (
                await http.post(
                    f"{each.vllm_url}/v1/completions",
                    json={
                        "model": each.model_name,
                        "prompt": words(40),
                        "max_tokens": 1,
                        "kv_transfer_params": {"cwm.tell_weights": True},
                    },
                )
            ).json()
            for each in fleet.engines
        ]
    one, two = (answer["kv_transfer_params"]["cwm.deployment"] for answer in answers)
    assert one == two
    assert one.startswith("kv-")
    assert len({answer["system_fingerprint"] for answer in answers}) == 2


def test_a_session_moves_with_all_its_kv_and_its_canary_is_the_same_there(moves: Moves) -> None:
    assert (moves.moved["source"], moves.moved["target"]) == ("engine-1", "engine-2")
    assert moves.moved["blocks_found"] == moves.moved["blocks_total"] > 10
    assert moves.moved["tokens_restored"] == restorable_tokens(moves.context_tokens[0], 32)
    assert moves.moved["canary"]["result"] == "exact"


def test_no_turn_after_a_drain_is_cold_and_all_say_what_they_would_have_said(moves: Moves) -> None:
    assert (moves.drained["moved"], moves.drained["stayed"]) == (1, [])
    assert moves.engines == ["engine-2"]
    for answer, undisturbed, count in zip(
        moves.answers, moves.undisturbed, moves.context_tokens, strict=True
    ):
        assert cached(answer) >= restorable_tokens(count, 32)
        assert answer["token_ids"] == undisturbed


def test_turns_thaws_and_moves_go_on_without_the_coordinator(without_coordinator: WithoutCoordinator) -> None:
    alone = without_coordinator
    assert cached(alone.answer) >= restorable_tokens(alone.context_tokens, 32)
    assert len(alone.new_answers) == 2
    assert alone.thawed["receipt"]["tokens_restored"] == restorable_tokens(alone.window_tokens, 32)
    assert alone.thawed["verification"] == "exact"
    assert (alone.moved["target"], alone.moved["canary"]["result"]) == ("engine-2", "exact")


def test_what_pins_and_deletes_waits_for_the_coordinator(without_coordinator: WithoutCoordinator) -> None:
    tools = ("window_freeze", "window_clone", "window_delete")
    assert without_coordinator.refused == dict.fromkeys(tools, "CWM-5001")
    coordinator = next(
        each for each in without_coordinator.ready.json()["components"] if each["name"] == "coordinator"
    )
    assert coordinator["status"] == "unhealthy"
    assert "Without it" in coordinator["message"]


@dataclass(frozen=True, slots=True)
class FullValkey:
    """What became of two sessions of one engine whose KV a full Valkey refused."""

    refused: RefusedError
    """The move of the first one meanwhile."""
    frozen: dict[str, Any]
    moved: dict[str, Any]
    """The same move once Valkey had room again."""
    drained: dict[str, Any]
    """The drain of the second one's engine, after that."""
    answers: list[dict[str, Any]]
    """The next turns: of the first one while Valkey was full and after its move, of the second one after the drain."""
    undisturbed: list[list[int]]
    context_tokens: list[int]


@pytest.fixture(scope="module")
def full_valkey(fleet: LiveEngine, front: LiveGateway) -> FullValkey:
    return asyncio.run(_full_valkey(fleet, front))


async def _full_valkey(fleet: LiveEngine, front: LiveGateway) -> FullValkey:
    one, two = fleet.engines
    sessions = ("meets_a_full_valkey", "meets_it_too")
    async with talk(front.url, front.model) as client:
        for session in sessions:
            await client.tool("session_create", session_id=session)
            await client.tool("session_move", session_id=session, engine=one.name)
        async with _without_room(fleet):
            _, ids = await client.fill(words(400), sessions[0])
            _, ids_too = await client.fill(words(300), sessions[1])
            prompt, prompt_too = [*ids, *words(20)], [*ids_too, *words(20)]
            undisturbed = await _directly(client, one.vllm_url, prompt)
            undisturbed_too = await _directly(client, one.vllm_url, prompt_too)
            with pytest.raises(RefusedError) as refused:
                await client.tool("session_move", session_id=sessions[0], engine=two.name)
            answer = await client.complete(prompt, session=sessions[0], max_tokens=_ANSWER_TOKENS)
            frozen = await client.tool(
                "window_freeze",
                session_id=sessions[0],
                window_name="beside_a_full_valkey",
                keep_session=True,
            )
        further = [*prompt, *answer["token_ids"], *words(20)]
        undisturbed_further = await _directly(client, one.vllm_url, further)
        moved = await client.tool("session_move", session_id=sessions[0], engine=two.name)
        drained = await client.tool("engine_drain", engine=one.name)
        answers = [
            answer,
            await client.complete(further, session=sessions[0], max_tokens=_ANSWER_TOKENS),
            await client.complete(prompt_too, session=sessions[1], max_tokens=_ANSWER_TOKENS),
        ]
        await client.tool("engine_drain", engine=one.name, undo=True)
    return FullValkey(
        refused.value,
        frozen,
        moved,
        drained,
        answers,
        [undisturbed, undisturbed_further, undisturbed_too],
        [len(ids), len(prompt) + _ANSWER_TOKENS, len(ids_too)],
    )


@asynccontextmanager
async def _without_room(fleet: LiveEngine) -> AsyncIterator[None]:
    """Valkey refuses every write for as long as the block lasts."""
    async with Redis.from_url(fleet.redis_url) as valkey:
        limits = await valkey.config_get("maxmemory*")
        await valkey.config_set("maxmemory-policy", "noeviction")
        await valkey.config_set("maxmemory", 1)
        try:
            yield
        finally:
            await valkey.config_set("maxmemory", str(limits["maxmemory"]))
            await valkey.config_set("maxmemory-policy", str(limits["maxmemory-policy"]))


def test_a_move_while_valkey_is_full_is_refused_and_loses_nothing(full_valkey: FullValkey) -> None:
    refused = full_valkey.refused
    assert (refused.code, refused.context["blocks_found"]) == ("CWM-4001", 0)
    assert full_valkey.frozen["durability"] == "durable"


def test_once_valkey_has_room_the_same_move_stores_what_it_had_refused(full_valkey: FullValkey) -> None:
    moved = full_valkey.moved
    assert moved["blocks_found"] == moved["blocks_total"] > 10
    assert moved["tokens_restored"] == restorable_tokens(full_valkey.context_tokens[1], 32)
    assert moved["canary"]["result"] == "exact"


def test_a_drain_leaves_no_session_behind_whose_kv_a_full_valkey_had_refused(full_valkey: FullValkey) -> None:
    assert full_valkey.drained["stayed"] == []
    assert full_valkey.drained["moved"] >= 1


def test_no_turn_before_or_after_that_is_cold_or_says_anything_else(full_valkey: FullValkey) -> None:
    for answer, undisturbed, count in zip(
        full_valkey.answers, full_valkey.undisturbed, full_valkey.context_tokens, strict=True
    ):
        assert cached(answer) >= restorable_tokens(count, 32)
        assert answer["token_ids"] == undisturbed


def test_a_stream_whose_engine_was_killed_goes_on_without_a_seam(outage: Outage) -> None:
    events = [line.removeprefix("data: ") for line in outage.stream.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert [token for choice in choices for token in choice["token_ids"] or ()] == outage.undisturbed_stream


def test_a_session_whose_engine_was_killed_goes_on_elsewhere_with_its_kv(outage: Outage) -> None:
    restorable = restorable_tokens(outage.context_tokens, 32)
    assert cached(outage.answer) >= restorable > 500
    assert outage.loaded_tokens >= restorable
    assert outage.answer["token_ids"] == outage.undisturbed


def test_a_window_that_was_frozen_on_an_engine_that_is_gone_thaws_on_another(outage: Outage) -> None:
    assert outage.thawed["receipt"]["tokens_restored"] == restorable_tokens(outage.window_tokens, 32)
    assert outage.thawed["partial"] is False
    assert outage.thawed["verification"] == "exact"


def test_a_freeze_needs_no_other_engine_than_the_session_s_own(outage: Outage) -> None:
    assert outage.frozen_again["durability"] == "durable"


def test_a_gateway_of_which_one_engine_is_gone_is_ready_and_names_it(outage: Outage) -> None:
    assert outage.ready.status_code == 200
    assert outage.ready.json()["status"] == "degraded"
    assert "engine-1" in outage.ready.text


def test_a_model_of_two_engines_is_listed_once(outage: Outage) -> None:
    assert outage.models == ["tiny"]
