"""The benchmark of previews, once over."""

from __future__ import annotations

from cwm_bench.context.previews import cases, measure
from tests.services.results.preview.values import Thirds


def test_every_result_of_the_benchmark_is_large_and_gets_a_preview() -> None:
    section, summary = measure(Thirds(), rounds=1)
    assert len(section.rows) == len(summary) == len(cases())
    for _, kilobytes, milliseconds, tokens, share in section.rows:
        assert kilobytes > 250
        assert milliseconds > 0
        assert 1500 < tokens <= 2000
        assert share < 0.1
