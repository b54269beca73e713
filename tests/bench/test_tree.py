"""``cwm bench tree``: what its figures mean, and an engine that needs no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cwm.adapters.vllm.turns.openai.answer import BodyAnswer, StreamAnswer
from cwm_bench.tree import recording
from cwm_bench.tree.checkout import (
    TOKENS,
    TURNS,
    Checkout,
    CheckoutFigures,
    TurnReuse,
    message_chars,
    summary,
)
from cwm_bench.tree.recording import RecordingTimes, Size, figures_of
from cwm_bench.tree.stored import context_bytes
from cwm_bench.tree.stub_engine import ANSWER, answer_to

BLOCK = 64


def figures(**changes: Any) -> CheckoutFigures:
    fields: dict[str, Any] = {
        "checkouts": [Checkout(1, 100, 50.0, 90.0, exact=True), Checkout(2, 200, 50.0, 150.0, exact=False)],
        "reuses": [TurnReuse(parent_at=129, prompt_tokens=200, cached_tokens=128)],
        "last_ms": {"vllm": 20.0, "cpu": 30.0, "lower": 40.0},
        "kv": {"conversation": 1000, "windows": 1010, "branches": 1250},
        "tree": 120,
        "tree_with_branches": 150,
        "context": 100,
        "block": BLOCK,
    }
    return CheckoutFigures(**(fields | changes))


def test_the_summary_has_the_figures_of_going_back_by_their_names() -> None:
    assert summary(figures()) == {
        "turns": 2,
        "checkout_exact": 1,
        "checkout_ms_8k": 20.0,
        "checkout_ms_8k_cpu": 30.0,
        "checkout_ms_8k_lower": 40.0,
        "storage_ratio": 1.2,
        "storage_ratio_with_branches": 1.5,
        "ref_bytes_share": 0.01,
        "branch_bytes_share": 0.24,
        "prediction_error_blocks": 0.0,
    }


@pytest.mark.parametrize(
    ("parent_at", "cached", "blocks"),
    [
        (129, 128, 0),  # the token behind the second block was only sampled
        (128, 64, 0),  # a sampled token would complete the second block
        (300, 192, 0),  # no more than the prompt has, and its last token is always computed
        (129, 64, 1),
        (129, 192, -1),
    ],
)
def test_a_prediction_is_compared_in_whole_blocks_of_the_prompt(
    parent_at: int, cached: int, blocks: float
) -> None:
    assert TurnReuse(parent_at, 200, cached).error_blocks(BLOCK) == blocks


def test_the_largest_prediction_error_counts_whichever_side_it_is_on() -> None:
    reuses = [TurnReuse(129, 200, 64), TurnReuse(129, 400, 256), TurnReuse(129, 200, 128)]
    assert summary(figures(reuses=reuses))["prediction_error_blocks"] == -2


def test_messages_share_what_is_left_of_the_context() -> None:
    assert message_chars(TOKENS, TURNS) == message_chars(TOKENS // 2, TURNS // 2)
    assert message_chars(TOKENS, 1) > message_chars(TOKENS, TURNS)
    assert message_chars(1, 1) == 1


def test_a_context_takes_more_with_more_tokens_and_with_more_messages() -> None:
    ids, message = list(range(1000)), {"role": "user", "content": "Say it."}
    assert context_bytes(ids[:500], []) < context_bytes(ids, []) < context_bytes(ids, [message])


def test_what_recording_adds_is_the_median_of_pairs() -> None:
    times = RecordingTimes([(5.0, 3.0), (9.0, 4.0), (6.0, 3.0)], [(4.0, 1.0), (4.0, 1.0), (4.0, 1.0)])
    assert times.added() == (2.0, 2.0)


def test_each_size_has_its_figures_and_the_first_has_a_goal() -> None:
    times = RecordingTimes([(5.0, 3.0)], [(4.0, 1.0)])
    made = figures_of(Size(100_000, stream=True), times)
    assert [(figure.key, figure.measured) for figure in made] == [
        ("recording_ms_100k_stream", 1.0),
        ("recording_ms_100k_stream_cpu", 2.0),
        ("recording_ms_100k_stream_of", 4.0),
    ]
    assert [figure.goal is not None for figure in made] == [True, False, False]


def read(request: dict[str, Any]) -> BodyAnswer | StreamAnswer:
    kind, body = answer_to("/v1/chat/completions", request)
    answer = (StreamAnswer if kind == "text/event-stream" else BodyAnswer)(recorded=True, hide_ids=True)
    answer.feed(body)
    answer.finish()
    return answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_of_the_stub_begins_with_the_whole_context_before_it(stream: bool) -> None:
    question = {"role": "user", "content": "What is it?"}
    first = read({"messages": [question], "stream": stream, "return_token_ids": True})
    said = {"role": "assistant", "content": ANSWER}
    assert first.message() == said
    second = read({"messages": [question, said, question], "stream": stream, "return_token_ids": True})
    before, after = first.token_ids(), second.token_ids()
    assert before is not None
    assert after is not None
    assert after[: len(before)] == before
    assert second.prompt_tokens() > len(before)


def test_the_stub_gives_ids_only_when_they_are_requested() -> None:
    _, body = answer_to("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is it?"}]})
    assert json.loads(body)["prompt_token_ids"] is None


@pytest.mark.slow
async def test_recording_is_measured_through_a_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "SIZES", (Size(8_000, stream=True),))
    monkeypatch.setattr(recording, "_CONVERSATIONS", 1)
    monkeypatch.setattr(recording, "_PAIRS", 4)
    measured = {figure.key: figure.measured for figure in await recording.measure(tmp_path, lambda _: None)}
    assert measured.keys() == {
        "recording_ms_8k_stream",
        "recording_ms_8k_stream_cpu",
        "recording_ms_8k_stream_of",
    }
    assert measured["recording_ms_8k_stream_of"] > 0
