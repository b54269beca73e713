"""Ids of prompts that begin with the prompt before."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.adapters.vllm.turns.prompt_ids import RecentPrompts

LONG = [*range(2000)]


def answer(ids: Any, **more: Any) -> bytes:
    return json.dumps({"text": 'a "prompt_token_ids": [1]', "prompt_token_ids": ids, **more}).encode()


@given(st.lists(st.tuples(st.integers(0, 2000), st.lists(st.integers(0, 99_999), max_size=9)), max_size=6))
def test_ids_are_those_that_the_answer_has_whatever_prompt_came_before(
    changes: list[tuple[int, list[int]]],
) -> None:
    prompts = RecentPrompts()
    for length, more in changes:
        ids = [*LONG[:length], *more]
        found, rest = prompts.take("s", answer(ids, token_ids=[4]))
        assert found == ids
        assert rest == answer(None, token_ids=[4])


@pytest.mark.parametrize("ids", [None, ["1"], [1.5], [[1]], "[1]", [-1]])
def test_what_is_no_array_of_ids_is_left_where_it_is(ids: Any) -> None:
    prompts = RecentPrompts()
    assert prompts.take("s", answer(LONG))[0] == LONG
    assert prompts.take("s", answer(ids)) == (None, answer(ids))


def test_no_more_prompts_are_kept_than_there_is_room_for() -> None:
    prompts = RecentPrompts(most_tokens=5000)
    for session in ("a", "b", "c", "a", "c"):
        assert prompts.take(session, answer([*LONG, 5]))[0] == [*LONG, 5]
    assert prompts.tokens == 2 * 2001
