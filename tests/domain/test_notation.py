"""Sizes are written alike by commands and by the console."""

from __future__ import annotations

import pytest

from cwm.domain.notation import size


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1536, "1.5 KiB"),
        (5 * 1024**3, "5.0 GiB"),
        (1023.5 * 1024, "1,023.5 KiB"),
        (3000 * 1024**4, "3,000.0 TiB"),
    ],
)
def test_a_size_is_in_the_largest_unit_that_leaves_at_least_one(count: float, words: str) -> None:
    assert size(count) == words
