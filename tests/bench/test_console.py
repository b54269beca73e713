"""``cwm bench console`` asks for every page of the console and measures it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm_bench.console import run as console
from cwm_bench.console.conversation import Conversation
from cwm_bench.console.pages import addresses
from cwm_bench.console.run import ConsoleRun


@pytest.mark.slow
async def test_a_small_run_measures_each_page_on_both_databases(tmp_path: Path) -> None:
    report = await console.run(lambda _line: None, ConsoleRun(1_000, 120, 5), tmp_path)
    rows = report.sections[0].rows
    assert len(rows) >= len(addresses(1000, Conversation("a", "b")))
    assert all(row[1] > 0 and row[4] > 0 for row in rows)
    assert 0 < report.summary["tree_500_ms"] <= report.summary["worst_page_ms"]
    assert report.summary["largest_transfer_bytes"] < 100_000
