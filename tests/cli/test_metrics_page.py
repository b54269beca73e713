from __future__ import annotations

from pathlib import Path

from docs.generate.metrics import page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_of_metrics_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "make it again: python -m docs.generate.metrics > docs/metrics.md"


def test_every_metric_says_what_it_means() -> None:
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith(("| `cwm_", "| `process_"))]
    assert len(rows) > 30
    assert all(len(row) == 4 and len(row[3]) > 10 for row in rows)
