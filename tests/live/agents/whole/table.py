"""The table of docs/clients.md, which the run writes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[4] / "docs" / "clients.md"
_BEGIN, _END = "<!-- agents:begin -->\n", "<!-- agents:end -->"


def write(page: Path, agent: str, version: str, cells: Mapping[str, str], today: date) -> None:
    """The row of one agent, in place of the one that it had."""
    before, _, rest = page.read_text().partition(_BEGIN)
    table, _, behind = rest.partition(_END)
    head = ["agent", "version", "date", *cells]
    rows = {row.split("|")[1].strip(): row for row in table.splitlines()[2:]}
    rows[agent] = _row([agent, version, today.isoformat(), *cells.values()])
    lines = [_row(head), _row(["---"] * len(head)), *(rows[name] for name in sorted(rows))]
    page.write_text(f"{before}{_BEGIN}" + "".join(f"{line}\n" for line in lines) + f"{_END}{behind}")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
