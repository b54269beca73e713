"""How many values JSON has is counted without parsing it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cwm.domain.errors import InvalidParameterError
from cwm.domain.json_bounds import UNSCANNED_BYTES, require_bounded

TEXTS = st.text(st.sampled_from('ab"\\,:[]{}\n é😀'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def counted(value: Any) -> int:
    """What a value counts as, from the value itself."""
    if isinstance(value, dict):
        return 8 + max(len(value) - 1, 0) + sum(8 + counted(inner) for inner in value.values())
    if isinstance(value, list):
        return 8 + max(len(value) - 1, 0) + sum(map(counted, value))
    return 0


@given(value=VALUES, spaces=st.integers(0, 60), ascii_only=st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_count_is_exact_wherever_a_body_is_cut(value: Any, spaces: int, *, ascii_only: bool) -> None:
    text = json.dumps([value, "," * 100], ensure_ascii=ascii_only).encode()
    # A piece ends within the value.
    body = b" " * (UNSCANNED_BYTES - spaces) + text + b" " * 100
    most = counted([value, ""])
    require_bounded(body, most)
    with pytest.raises(InvalidParameterError, match=f"more than {most - 1} values"):
        require_bounded(body, most - 1)


def test_text_that_looks_like_values_is_none() -> None:
    code = 'if (a[1], {"b": 2}) { return [x, y]; }\n' * 20_000
    require_bounded(json.dumps({"text": code, "more": "\\" * 100_001 + '"' + code}).encode(), 25)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32-le", "utf-16"])
def test_no_encoding_hides_values(encoding: str) -> None:
    hidden = "∢" + "[],"
    body = json.dumps([hidden] * 20_000, ensure_ascii=False).encode(encoding)
    with pytest.raises(InvalidParameterError):
        require_bounded(body, 10_000)


def test_a_small_body_needs_no_bound() -> None:
    require_bounded(b"[" * UNSCANNED_BYTES, 1)


def test_a_long_conversation_with_many_large_tools_is_far_from_the_bound() -> None:
    field = {"type": "string", "description": "what it does, at length " * 4, "enum": ["a", "b"]}
    schema = {
        "type": "object",
        "properties": {f"field_{n}": field for n in range(60)},
        "required": ["field_1"],
    }
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "parameters": schema}} for n in range(100)
    ]
    call = {"id": "1", "type": "function", "function": {"name": "tool_1", "arguments": '{"path": "/a"}'}}
    parts = [{"type": "text", "text": "read {it}, please", "cache_control": {"type": "ephemeral"}}] * 2
    exchange = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "[I], do: {it}", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "def f(a, b):\n    return {a: [b]}\n" * 30},
        {"role": "tool", "tool_call_id": "1", "content": "{}"},
    ]
    body = json.dumps({"model": "m", "messages": exchange * 500, "tools": tools}).encode()
    require_bounded(body, 600_000)
