"""``cwm bench gateway`` measures what it says, on servers of its own."""

from __future__ import annotations

import pytest

from cwm.bench import tool_calls


@pytest.mark.slow
async def test_it_compares_both_eras_and_counts_what_a_session_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, few in (("_CALLS", 4), ("_SESSIONS", (2,)), ("_IDLE_SESSIONS", 20), ("_WARM_SESSIONS", 5)):
        monkeypatch.setattr(tool_calls, name, few)
    told: list[str] = []
    report = await tool_calls.run(told.append, rounds=3)
    assert set(report.summary) == {"throughput_ratio", "added_ms_upstream", "bytes_per_session"}
    assert report.summary["throughput_ratio"] > 0
    assert [row[0] for row in report.sections[0].rows] == ["2026-07-28, 2", "2025-11-25, 2"]
    assert all(figure > 0 for row in report.sections[0].rows for figure in row[1:-1])
    assert told[-1] == "20 idle sessions"
