"""Generates ``docs/metrics.md`` from the code: ``python -m docs.generate.metrics``."""

from __future__ import annotations

from pathlib import Path

from cwm.adapters.telemetry.described import Described
from cwm.adapters.telemetry.prometheus import PrometheusMeter


def page() -> str:
    """The whole page as Markdown."""
    head = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return text.replace("{metrics}", head + "".join(map(_row, PrometheusMeter().described())))


def _row(metric: Described) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.help_text.rstrip('.')} |\n"


if __name__ == "__main__":
    print(page(), end="")
