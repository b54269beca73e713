"""A benchmark's report: tables for people and a summary for machines, with medians and ratios."""

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
    """One table; ``note`` says how its figures were measured."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)
    note: str = ""

    def print(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left", caption=self.note or None)
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in self.rows:
            table.add_row(*(_cell_text(cell) for cell in row))
        console.print(table)


@dataclass(slots=True)
class Report:
    """What one run of a benchmark measured."""

    name: str
    context: dict[str, Any]
    sections: list[Section] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def print(self, console: Console) -> None:
        for section in self.sections:
            section.print(console)
        self.print_summary(console)

    def print_summary(self, console: Console) -> None:
        table = Table(title="summary", title_justify="left", show_header=False)
        for name, value in _flat(self.summary):
            table.add_row(name, _cell_text(value))
        console.print(table)

    def write(self, path: Path) -> None:
        """Replace the file at ``path``: a reader sees all of the old document or all of the new one."""
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
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(json.dumps(document, indent=2) + "\n")
        fresh.replace(path)


def median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)


def ratio(part: float, whole: float) -> float:
    return round(part / whole, 3) if whole else float("nan")


def _flat(summary: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Its entries; a nested table becomes one entry per row."""
    for name, value in summary.items():
        if isinstance(value, dict) and all(isinstance(row, dict) for row in value.values()):
            yield from ((f"{name} {row}", figures) for row, figures in value.items())
        else:
            yield name, value


def _cell_text(cell: Any) -> str:
    if isinstance(cell, dict):
        return ", ".join(f"{name} {_cell_text(value)}" for name, value in cell.items())
    if isinstance(cell, float):
        return f"{cell:.3f}" if abs(cell) < 10 else f"{cell:.1f}"
    return str(cell)
