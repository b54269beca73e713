"""What the benchmark of token counts tells."""

from __future__ import annotations

import pytest

from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm_bench.context import tokens
from cwm_bench.context.tokens import Estimates
from cwm_bench.harness import token_corpus


def test_a_text_is_as_long_as_asked_for_and_the_same_each_time() -> None:
    for kind in token_corpus.KINDS:
        text = token_corpus.text(kind, 10_000, seed=4)
        assert len(text) == 10_000
        assert text == token_corpus.text(kind, 10_000, seed=4)


def test_seeds_make_different_texts() -> None:
    for kind in token_corpus.KINDS:
        assert token_corpus.text(kind, 10_000, seed=1) != token_corpus.text(kind, 10_000, seed=2)


def test_errors_are_told_in_absolute_p95_and_the_worst_below_the_truth() -> None:
    found = Estimates({"a": [0.01] * 10 + [-0.02], "b": [0.03] + [0.0] * 28})
    assert found.p95 == 0.01
    assert found.worst_under == 0.02
    assert Estimates({"a": [0.01]}).worst_under == 0.0


def test_estimates_are_measured_on_every_kind() -> None:
    found = tokens.estimates(BpeTokenCounter(), lengths=(270_000,), seeds=1)
    assert set(found.errors) == set(token_corpus.KINDS)
    assert 0 < found.p95 < 0.05


def test_speed_is_measured_on_every_kind() -> None:
    assert all(tokens.milliseconds(BpeTokenCounter(), rounds=1).values())


@pytest.mark.slow
async def test_memory_is_measured_in_a_process_of_its_own() -> None:
    loaded, used = await tokens.memory()
    assert 10 < loaded <= used < 100
