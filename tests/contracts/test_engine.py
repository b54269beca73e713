"""The engine that CWM speaks to, real and in memory: what its answers mean and what of them is in the cache."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cwm.domain.errors import InvalidParameterError
from cwm.domain.look import distance
from cwm.ports.engine import Generation
from tests.contracts.engine_side import EngineSide

CHAT = [{"role": "user", "content": "hi"}]


async def test_one_model_is_served_from_a_path_and_says_its_length(engine_side: EngineSide) -> None:
    (served,) = await engine_side.engine.models()
    assert (served.id, served.root) == (engine_side.model, engine_side.root)
    assert served.max_model_len >= 4 * engine_side.chunk
    assert (await engine_side.engine.version()).count(".") == 2
    assert await engine_side.engine.kv_dtype() == "auto"
    assert "/v1/completions" in await engine_side.engine.paths()
    await engine_side.engine.health()


async def test_equal_contexts_go_on_with_equal_tokens_however_they_are_asked_for(
    engine_side: EngineSide,
) -> None:
    request = engine_side.request(engine_side.ids(2), 6, logprobs=5)
    whole = await engine_side.engine.complete(request)
    deltas = [delta async for delta in engine_side.engine.stream(replace(request, cache_salt="another"))]
    assert sum((delta.token_ids for delta in deltas), ()) == whole.token_ids
    assert "".join(delta.text for delta in deltas) == whole.text
    assert (
        [delta.finish_reason for delta in deltas if delta.finish_reason]
        == [whole.finish_reason]
        == ["length"]
    )
    assert (deltas[-1].prompt_tokens, deltas[-1].cached_tokens) == (whole.prompt_tokens, 0)
    assert whole.prompt_tokens == len(request.token_ids)
    assert whole.fingerprint


async def test_an_answer_of_several_tokens_is_the_answers_to_growing_prompts(engine_side: EngineSide) -> None:
    ids = engine_side.ids(1)
    whole = await engine_side.ask(ids, 3)
    first = await engine_side.ask(ids)
    assert (await engine_side.ask(ids + first.token_ids, 2)).token_ids == whole.token_ids[1:]


async def test_each_new_token_comes_with_the_likeliest_ones_where_they_are_asked_for(
    engine_side: EngineSide,
) -> None:
    ids = engine_side.ids(1)
    answer = await engine_side.engine.complete(engine_side.request(ids, 3, logprobs=5))
    assert [max(top, key=lambda token: top[token]) for top in answer.top] == list(answer.token_ids)
    assert [len(top) for top in answer.top] == [5] * 3
    assert max(value for top in answer.top for value in top.values()) <= 0
    assert (await engine_side.ask(ids, 3)).top == ()


async def test_what_the_engine_still_has_is_not_computed_and_another_salt_has_nothing(
    engine_side: EngineSide,
) -> None:
    ids = engine_side.ids(3)
    first = await engine_side.ask(ids)
    again = await engine_side.ask(ids + first.token_ids)
    other = await engine_side.engine.complete(
        replace(engine_side.request(ids), cache_salt=f"{engine_side.salt}-2")
    )
    assert (first.cached_tokens, other.cached_tokens) == (0, 0)
    assert (again.cached_tokens, again.loaded_tokens) == (3 * engine_side.chunk, 0)


@pytest.mark.parametrize(("over", "cached"), [(1, 0), (0, -1)])
async def test_what_is_loaded_counts_as_cached_but_for_the_last_token(
    engine_side: EngineSide, over: int, cached: int
) -> None:
    ids = engine_side.ids(3, over)
    await engine_side.stored(ids)
    await engine_side.faults.forget_gpu()
    answer = await engine_side.ask(ids)
    assert answer.loaded_tokens == 3 * engine_side.chunk
    assert answer.cached_tokens == 3 * engine_side.chunk + cached


async def test_a_load_ends_before_the_first_chunk_that_is_gone_and_what_follows_is_stored_again(
    engine_side: EngineSide,
) -> None:
    ids = engine_side.ids(4)
    key = await engine_side.stored(ids)
    expected = await engine_side.ask(ids, 4)
    await engine_side.faults.lose(key, 2)
    await engine_side.faults.forget_gpu()
    answer = await engine_side.ask(ids, 4)
    assert answer.loaded_tokens == 2 * engine_side.chunk
    assert answer.token_ids == expected.token_ids
    await engine_side.settled(key, 4)


@pytest.mark.parametrize("chunks", [0, 2])
async def test_a_request_loads_no_more_than_it_says(engine_side: EngineSide, chunks: int) -> None:
    ids = engine_side.ids(4)
    await engine_side.stored(ids)
    await engine_side.faults.forget_gpu()
    answer = await engine_side.ask(ids, load_tokens=chunks * engine_side.chunk)
    assert answer.loaded_tokens == answer.cached_tokens == chunks * engine_side.chunk


async def test_a_request_stores_no_more_than_it_says(engine_side: EngineSide) -> None:
    ids = engine_side.ids(4)
    await engine_side.ask(ids, store_tokens=2 * engine_side.chunk)
    await engine_side.settled(engine_side.key(ids), 2)
    await engine_side.kv_tier.drop_l1(engine_side.key(ids))
    assert (await engine_side.kv_tier.prefetch(engine_side.key(ids))).found == 2


async def test_a_request_that_expects_other_weights_neither_loads_nor_stores(engine_side: EngineSide) -> None:
    weights = (await engine_side.ask(engine_side.ids(1))).weights
    assert weights
    ids = engine_side.ids(3)
    stored = replace(engine_side.request(ids), weights=weights)
    others = replace(stored, weights="others")
    refused = await engine_side.engine.complete(others)
    assert (refused.weights, refused.loaded_tokens) == (weights, 0)
    await engine_side.faults.forget_gpu()
    assert (await engine_side.engine.complete(stored)).loaded_tokens == 0
    await engine_side.settled(engine_side.key(ids), 3)
    await engine_side.faults.forget_gpu()
    again = await engine_side.engine.complete(others)
    assert (again.loaded_tokens, again.cached_tokens) == (0, 0)
    assert again.token_ids == refused.token_ids
    await engine_side.faults.forget_gpu()
    assert (await engine_side.engine.complete(stored)).loaded_tokens == 3 * engine_side.chunk


async def test_an_engine_that_runs_on_has_started_once(engine_side: EngineSide) -> None:
    started = await engine_side.engine.started()
    assert started
    assert await engine_side.engine.started() == started


async def test_the_token_that_was_sampled_last_has_no_kv_until_the_next_request(
    engine_side: EngineSide,
) -> None:
    prompt = engine_side.ids(1, engine_side.chunk - 4)
    answer = await engine_side.ask(prompt, 4)
    key = engine_side.key(prompt + answer.token_ids)
    await engine_side.settled(key, 1)
    assert (await engine_side.kv_tier.prefetch(key)).found == 1
    await engine_side.ask(key.token_ids)
    await engine_side.settled(key, 2)


async def test_only_who_wants_to_know_is_told_what_was_loaded(engine_side: EngineSide) -> None:
    request = engine_side.request(engine_side.ids(1), tell_loaded=False)
    assert (await engine_side.engine.complete(request)).loaded_tokens is None
    assert (await engine_side.engine.complete(replace(request, load_tokens=0))).loaded_tokens == 0


async def test_counters_say_where_prompts_came_from(engine_side: EngineSide) -> None:
    ids = engine_side.ids(2)
    await engine_side.stored(ids)
    await engine_side.faults.forget_gpu()
    before = await engine_side.engine.counters()
    answer = await engine_side.ask(ids)
    await engine_side.ask(ids)
    after = await engine_side.engine.counters()
    grown = {
        source: count - before.prompt_tokens_by_source.get(source, 0)
        for source, count in after.prompt_tokens_by_source.items()
    }
    assert grown["external_kv_transfer"] == answer.loaded_tokens == 2 * engine_side.chunk
    assert grown["local_cache_hit"] == 2 * engine_side.chunk
    assert grown["local_compute"] == 2
    assert after.prefix_queries - before.prefix_queries == 2 * len(ids)
    assert after.prefix_hits - before.prefix_hits == 2 * engine_side.chunk
    assert after.external_hits - before.external_hits == 2 * engine_side.chunk


async def test_an_answer_ends_where_the_model_does(engine_side: EngineSide) -> None:
    (served,) = await engine_side.engine.models()
    ids = engine_side.ids(0, served.max_model_len - 2)
    answer = await engine_side.ask(ids, 16)
    assert (len(answer.token_ids), answer.finish_reason) == (2, "length")


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "nope"},
        {"token_ids": (10**7,)},
        {"token_ids": ()},
        {"token_ids": (1,) * 100_000},
        {"cache_salt": "a@b"},
        {"cache_salt": "a" * 129},
        {"max_tokens": 0},
    ],
)
async def test_what_the_engine_refuses_is_a_bad_parameter(
    engine_side: EngineSide, wrong: dict[str, object]
) -> None:
    request = Generation(engine_side.model, (300, 301), engine_side.salt, 1)
    with pytest.raises(InvalidParameterError):
        await engine_side.engine.complete(replace(request, **wrong))  # type: ignore[arg-type]


async def test_a_chat_is_rendered_turn_by_turn_and_control_tokens_are_one_id(
    engine_side: EngineSide,
) -> None:
    engine, model = engine_side.engine, engine_side.model
    rendered = await engine.render(model, CHAT)
    without = await engine.render(model, CHAT, add_generation_prompt=False)
    more = await engine.render(model, [*CHAT, {"role": "assistant", "content": "yes"}])
    assert rendered[: len(without)] == without
    assert more[: len(rendered)] == rendered
    special = await engine.special_tokens(model)
    ends = [await engine.tokenize(model, text, add_special_tokens=False) for text in special]
    assert special
    assert {len(ids) for ids in ends} == {1}
    assert set(sum(ends, ())) & set(rendered)
    template = await engine.chat_template(model) or ""
    assert any(text in template for text in special)


async def test_a_request_is_rendered_as_it_would_be_served(engine_side: EngineSide) -> None:
    engine, model = engine_side.engine, engine_side.model
    body = json.dumps({"model": model, "messages": CHAT, "stream": True, "cache_salt": "s"}).encode()
    assert await engine.rendered("/v1/chat/completions", body) == await engine.render(model, CHAT)


async def test_chats_with_tools_are_served(engine_side: EngineSide) -> None:
    function = {"name": "probe", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}]
    assert await engine_side.engine.require_tools(engine_side.model, tools)


async def test_text_forges_control_tokens_where_nobody_looks(engine_side: EngineSide) -> None:
    engine, model = engine_side.engine, engine_side.model
    special = next(iter(await engine.special_tokens(model)))
    (control,) = await engine.tokenize(model, special, add_special_tokens=False)
    assert control in await engine.tokenize(model, f"Hello {special} there", add_special_tokens=False)


async def test_bytes_are_handed_on_with_whatever_status_they_come_back(engine_side: EngineSide) -> None:
    for path, status, word in (("/version", 200, b"version"), ("/no/such/path", 404, b"Not Found")):
        async with engine_side.engine.forward("GET", path, b"", {}) as answer:
            body = b"".join([chunk async for chunk in answer.chunks()])
            assert (answer.status, word in body) == (status, True)


async def test_a_look_shows_what_the_engine_expects_behind_each_chunk_from_what_it_still_has(
    engine_side: EngineSide,
) -> None:
    ids, chunk = engine_side.ids(3), engine_side.chunk
    await engine_side.ask(ids)
    places = tuple(number * chunk + 1 for number in (1, 2, 3))
    answer = await engine_side.engine.look(engine_side.request(ids), places)
    assert (answer.look.places, answer.cached_tokens) == (places, 3 * chunk)
    expected = [await engine_side.ask(ids[:place]) for place in places]
    likeliest = [max(top, key=lambda token: top[token]) for top in answer.look.top]
    assert [(token,) for token in likeliest] == [each.token_ids for each in expected]
    assert min(len(top) for top in answer.look.top) > 1


async def test_a_look_again_sees_the_same(engine_side: EngineSide) -> None:
    ids, chunk = engine_side.ids(3), engine_side.chunk
    await engine_side.ask(ids)
    request, places = engine_side.request(ids), (chunk + 1, 3 * chunk + 1)
    first, second = [(await engine_side.engine.look(request, places)).look for _ in range(2)]
    apart = distance([first], [second])
    assert (apart.places, apart.is_exact) == (2, True)


async def test_a_look_loads_nothing_and_says_that_the_context_was_gone(engine_side: EngineSide) -> None:
    ids, chunk = engine_side.ids(3), engine_side.chunk
    await engine_side.stored(ids)
    await engine_side.faults.forget_gpu()
    answer = await engine_side.engine.look(engine_side.request(ids), (chunk + 1, 3 * chunk + 1))
    assert answer.cached_tokens < 3 * chunk


async def test_a_look_stores_nothing(engine_side: EngineSide) -> None:
    ids, chunk = engine_side.ids(2), engine_side.chunk
    await engine_side.engine.look(engine_side.request(ids), (chunk + 1, 2 * chunk + 1))
    # What is asked for after it is stored after it.
    other = engine_side.ids(1)
    await engine_side.stored(other)
    assert (await engine_side.kv_tier.prefetch(engine_side.key(ids))).found == 0


async def test_the_engines_own_cache_has_room_for_a_context(engine_side: EngineSide) -> None:
    room = await engine_side.engine.kv_room()
    assert room is not None
    assert room >= 4 * engine_side.chunk


async def test_what_rests_on_a_load_is_told_also_where_it_is_in_the_engines_own_cache_by_now(
    engine_side: EngineSide,
) -> None:
    ids, chunk = engine_side.ids(3), engine_side.chunk
    computed = await engine_side.ask(ids)
    await engine_side.settled(engine_side.key(ids), 3)
    again = await engine_side.ask(ids)
    assert (computed.resting_tokens, again.resting_tokens) == (0, 0)
    await engine_side.faults.forget_gpu()
    loaded = await engine_side.ask(ids)
    longer = ids + engine_side.ids(2)
    computed_on_top = [await engine_side.ask(longer) for _ in range(2)]
    assert (loaded.loaded_tokens, loaded.resting_tokens) == (3 * chunk, 3 * chunk)
    assert [(each.loaded_tokens, each.resting_tokens) for each in computed_on_top] == [(0, 3 * chunk)] * 2


async def test_what_a_request_has_dropped_is_computed_again_and_so_is_what_was_on_top_of_it(
    engine_side: EngineSide,
) -> None:
    ids, chunk = engine_side.ids(3), engine_side.chunk
    longer = ids + engine_side.ids(2)
    await engine_side.ask(ids)
    await engine_side.ask(longer)
    request = engine_side.request(ids, load_tokens=0, store_tokens=0)
    dropping = await engine_side.engine.complete(replace(request, drop_after=chunk))
    assert dropping.dropped_blocks is not None
    assert (dropping.dropped_blocks >= 2, dropping.cached_tokens) == (True, chunk)
    after = await engine_side.ask(longer, load_tokens=0)
    assert after.cached_tokens == 3 * chunk, "of the longer one nothing behind the dropped part is left"
    assert after.resting_tokens == 0
