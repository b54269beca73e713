"""A stream cut into its events, however its bytes arrive."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.adapters.vllm.turns.events import Events


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\r\n\r", b"data: x\n\n", b"b\n"]), max_size=20))
def test_the_pieces_of_a_stream_change_nothing_but_when_an_event_is_there(chunks: list[bytes]) -> None:
    events = Events()
    taken = [event for chunk in chunks for event in events.take(chunk)]
    assert b"".join([*taken, events.rest()]) == b"".join(chunks)
    assert all(event.endswith((b"\n\n", b"\r\r", b"\r\n\r\n")) for event in taken)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_end_that_arrives_byte_by_byte_ends_its_event(end: bytes) -> None:
    events = Events()
    arrived = [events.take(bytes([byte])) for byte in b"data: x" + end + b"data: y" + end]
    assert [event for each in arrived for event in each] == [b"data: x" + end, b"data: y" + end]
    assert events.rest() == b""


def test_a_long_event_of_many_lines_takes_linear_time() -> None:
    # Joined with every line, its two megabytes are copied four hundred thousand times.
    events = Events()
    began = time.process_time()
    for _ in range(400_000):
        assert events.take(b"data\n") == []
    assert len(events.take(b"\n")) == 1
    assert time.process_time() - began < 20
