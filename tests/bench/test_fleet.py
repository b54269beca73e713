"""``cwm bench fleet``: what its figures mean, and what a client makes of a stream."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cwm.settings import load
from cwm.stack.errors import StackError
from cwm_bench.fleet import beside, drain, kills, moves, traffic
from cwm_bench.fleet.beside import NextTurn
from cwm_bench.fleet.drain import TurnAfterDrain
from cwm_bench.fleet.fleet import counter, fleet_plan
from cwm_bench.fleet.kills import Killed, request
from cwm_bench.fleet.moves import MovedTurn, MoveFigures
from cwm_bench.fleet.parts import FleetPart, FleetRun
from cwm_bench.fleet.stream import CHAT, StreamedAnswer, stream
from cwm_bench.fleet.traffic import Asked, Reference
from cwm_bench.harness import vllm_router

RECEIPT: dict[str, Any] = {
    "token_count": 200,
    "tokens_restored": 192,
    "blocks_found": 3,
    "blocks_total": 3,
    "tokens_by_tier": {"redis": 192},
    "canary": {"result": "exact"},
}
MOVED = MovedTurn(RECEIPT, 200, 192, 80.0, 20.0, as_undisturbed=True)


def event(delta: dict[str, Any], ids: list[int], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "token_ids": ids, "finish_reason": None, **more}
    return {"id": "a", "model": "small", "choices": [choice]}


def piece(**function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": function}]}


def lines(*events: dict[str, Any], end: bool = True) -> str:
    sent = [json.dumps(each) for each in events] + (["[DONE]"] if end else [])
    return "".join(f"data: {each}\n\n" for each in sent)


def whole(**changes: Any) -> StreamedAnswer:
    return replace(
        StreamedAnswer([1, 2], "ab", {}, {"a"}, "small", "length", 10, 0, 1.0, 2.0, True), **changes
    )


async def read(status: int, content: str) -> tuple[StreamedAnswer, list[int]]:
    counts: list[int] = []
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, text=content))
    async with httpx2.AsyncClient(transport=transport) as http:
        answer = await stream(http, "http://cwm", CHAT, {"model": "small"}, on_tokens=counts.append)
    return answer, counts


async def test_a_stream_is_its_tokens_text_calls_and_usage() -> None:
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5}}
    answer, counts = await read(
        200,
        lines(
            event({"content": "so"}, [1, 2]),
            event(piece(name="read", arguments='{"a"'), [3]),
            event(piece(arguments=": 1}"), [4], finish_reason="tool_calls"),
            {"id": "a", "model": "small", "choices": [], "usage": usage},
        ),
    )
    assert answer.is_whole
    assert (answer.ids, answer.text, answer.reason) == ([1, 2, 3, 4], "so", "tool_calls")
    assert answer.calls == {0: {"name": "read", "arguments": '{"a": 1}'}}
    assert (answer.prompt_tokens, answer.cached_tokens, answer.model) == (9, 5, "small")
    assert counts == [2, 3, 4]
    assert 0 < answer.first_ms <= answer.whole_ms


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (503, "no"),
        (200, lines(event({"content": "a"}, [1]), end=False)),
        (200, lines(event({"content": "a"}, [1]), {"error": {"message": "gone"}})),
        (200, lines(event({"content": "a"}, [1]), event({"content": "b"}, [2]) | {"id": "b"})),
    ],
    ids=["refused", "without its end", "with an error", "of two answers"],
)
async def test_a_broken_stream_is_not_whole(status: int, content: str) -> None:
    answer, _ = await read(status, content)
    assert not answer.is_whole
    with pytest.raises(RuntimeError, match="broke off"):
        answer.sound()


def test_a_move_is_exact_only_if_all_of_it_is() -> None:
    assert MOVED.is_exact
    for changed in ({"tokens_restored": 128}, {"blocks_found": 2}, {"canary": {"result": "skipped"}}):
        assert not replace(MOVED, receipt=RECEIPT | changed).is_exact
    assert not replace(MOVED, as_undisturbed=False).is_exact
    assert not replace(MOVED, context_tokens=300).is_exact


def test_first_tokens_after_moves_are_compared_with_those_after_thaws_and_cold_ones() -> None:
    slower = replace(MOVED, first_ms=40.0, cached_tokens=96, as_undisturbed=False)
    result = MoveFigures([replace(MOVED, cached_tokens=256), slower], [(40.0, 20.0), (40.0, 20.0)], [3_000.0])
    figures = moves.summary(result)
    assert (figures["moves"], figures["moves_exact"]) == (2, 1)
    assert figures["moved_hit_share"] == 0.75
    assert figures["ttft_ratio_to_thaw"] == 1.5
    assert figures["ttft_ratio_to_cold"] == 0.01
    assert figures["ttft_ratio_to_thaw_with_operation"] == 1.833
    assert len(moves.section(result).rows[0]) == len(moves.section(result).columns)


def test_a_kill_is_unnoticed_if_the_stream_is_whole_and_as_undisturbed_and_went_on_elsewhere() -> None:
    killed = Killed(request(1), "engine-1", whole(), whole(), 1, 1)
    assert killed.became == "unnoticed"
    assert replace(killed, answer=whole(ids=[1, 2, 2])).became == "DIFFERENT"
    assert replace(killed, answer=whole(fault="gone")).became == "BROKE OFF: gone"
    assert replace(killed, went_on=0).became == "already complete"
    _, summary = kills.figures([killed, replace(killed, went_on=0), replace(killed, request=request(0))])
    assert summary["kills_unnoticed"] == 2
    assert (summary["kills_with_tools"], summary["kills_with_tools_unnoticed"]) == (2, 1)


def test_half_of_the_killed_streams_have_tools_and_all_are_killed_before_their_end() -> None:
    requests = [request(number) for number in range(20)]
    assert sum("tools" in each.body for each in requests) == 10
    assert all(0 < each.kill_after < each.body["max_tokens"] for each in requests)
    assert len({json.dumps(each.body, sort_keys=True) for each in requests}) == 20


def test_a_turn_after_a_drain_is_cold_if_more_than_the_tail_was_computed() -> None:
    warm = TurnAfterDrain(200, whole(cached_tokens=192), whole())
    cold = TurnAfterDrain(200, whole(cached_tokens=128, text="c"), whole())
    _, summary = drain.figures([warm, cold], {"moved": 2, "stayed": []}, 10.0, 0)
    assert (summary["cold_after_drain"], summary["exact_after_drain"]) == (1, 1)


SERVED = {"engine-1": "small", "engine-2": "small", "engine-3": "tiny"}
REFERENCES = {("small", "p"): Reference((1,), (5,)), ("tiny", "p"): Reference((2,), (6,))}
ASKED = [Asked("small", "p", "small", (1,), (5,)), Asked("tiny", "p", "tiny", (2,), (7,))]


def test_requests_at_their_models_are_none_at_a_wrong_one() -> None:
    counts = {"engine-1": 0, "engine-2": 1, "engine-3": 1}
    _, summary = traffic.figures(ASKED, REFERENCES, SERVED, counts, 2.0)
    assert (summary["wrong_model"], summary["answers_as_alone"], summary["requests"]) == (0, 1, 2)


@pytest.mark.parametrize(
    ("first", "counts"),
    [
        (replace(ASKED[0], said_model="tiny"), (0, 1, 1)),
        (replace(ASKED[0], prompt_ids=(2,)), (0, 1, 1)),
        (ASKED[0], (0, 0, 2)),
    ],
    ids=["by its name", "by its vocabulary", "by the engines' counters"],
)
def test_a_request_at_a_wrong_model_is_seen(first: Asked, counts: tuple[int, ...]) -> None:
    asked = [first, ASKED[1]]
    assert traffic.wrong(asked, REFERENCES, SERVED, dict(zip(SERVED, counts, strict=True))) == 1


def test_hits_of_a_next_turn_are_of_the_whole_blocks_before_it() -> None:
    turn = NextTurn("CWM", beside.KILLED, 200, 96, 1, 30.0, 0.0, 900.0)
    section, summary = beside.figures([turn], "no network")
    assert summary["beside"] == {"CWM killed": {"hit_share": 0.5, "ttft_ms": 30.0, "requests": 1}}
    assert summary["vllm_router"] == "left out: no network"
    assert "no network" in section.note


def test_a_counter_is_the_sum_of_its_samples() -> None:
    text = 'a_total{x="1"} 2.0\na_total{x="2"} 3.0\na_total_more{x="1"} 9.0\na_total 1.0\n'
    assert counter(text, "a_total") == 6
    assert counter(text, "a_total", 'x="2"') == 3


def test_the_fleet_is_two_engines_of_one_model_and_one_of_another_with_equal_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_memory_gb", "_free_gb", "_shm_free_gb"):
        monkeypatch.setattr(f"cwm.stack.plan.{name}", lambda: 64.0)
    plan = fleet_plan(load({}), tmp_path, lambda _: None)
    assert [engine.model for engine in plan.engines] == ["smollm2-135m", "smollm2-135m", "tiny"]
    assert {(engine.chunk_size, engine.dtype) for engine in plan.engines} == {(64, "float32")}


def test_more_moves_and_kills_take_longer() -> None:
    few, many = FleetRun(2, 2), FleetRun(20, 20)
    assert all(few.seconds(part) < many.seconds(part) for part in (FleetPart.MOVES, FleetPart.KILLS))
    assert few.seconds(FleetPart.TRAFFIC) == many.seconds(FleetPart.TRAFFIC)
    assert sum(map(many.seconds, FleetPart)) < 35 * 60


def test_a_router_that_cannot_be_installed_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\necho 'no venv here' >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(StackError, match="no venv here"):
        vllm_router.installed(tmp_path / "env")
