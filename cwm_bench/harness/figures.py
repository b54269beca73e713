"""What a benchmark reports: rows for people, a summary for machines, medians and ratios in both."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class Section:
    """One table: a title, column names and rows of figures; ``note`` says how it was measured."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)
    note: str = ""


@dataclass(slots=True)
class Report:
    name: str
    context: dict[str, Any]
    sections: list[Section] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def print(self, console: Console) -> None:
        for section in self.sections:
            table = Table(title=section.title, title_justify="left", caption=section.note or None)
            for index, column in enumerate(section.columns):
                table.add_column(column, justify="left" if index == 0 else "right")
            for row in section.rows:
                table.add_row(*(_shown(cell) for cell in row))
            console.print(table)
        summary = Table(title="summary", title_justify="left", show_header=False)
        for name, value in _flat(self.summary):
            summary.add_row(name, _shown(value))
        console.print(summary)

    def write(self, path: Path) -> None:
        document = {
            "benchmark": self.name,
            "context": self.context,
            "sections": [
                {
                    "title": s.title,
                    "note": s.note,
                    "rows": [dict(zip(s.columns, row, strict=True)) for row in s.rows],
                }
                for s in self.sections
            ],
            "summary": self.summary,
        }
        path.write_text(json.dumps(document, indent=2) + "\n")


def median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)


def ratio(part: float, whole: float) -> float:
    return round(part / whole, 3) if whole else float("nan")


def _flat(summary: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Its entries, a table in it row by row."""
    for name, value in summary.items():
        if isinstance(value, dict) and all(isinstance(row, dict) for row in value.values()):
            yield from ((f"{name} {row}", figures) for row, figures in value.items())
        else:
            yield name, value


def _shown(cell: Any) -> str:
    if isinstance(cell, dict):
        return ", ".join(f"{name} {_shown(value)}" for name, value in cell.items())
    if isinstance(cell, float):
        return f"{cell:.3f}" if abs(cell) < 10 else f"{cell:.1f}"
    return str(cell)
