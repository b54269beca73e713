"""``cwm bench fleet`` on the command line: its parts and how often, and what it writes as soon as each is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cwm.cli.root import app
from cwm.settings import Settings
from cwm_bench.fleet import run as fleet
from cwm_bench.fleet.parts import FleetPart, FleetRun
from cwm_bench.harness.figures import Report, Section
from cwm_bench.harness.schedule import Schedule


async def measured(part: FleetPart) -> tuple[Section, dict[str, Any]]:
    if part is FleetPart.TRAFFIC:
        raise RuntimeError("the engine ended")
    return Section(f"table of {part}", ("what", "how many"), [("some", 1)]), {f"{part}_seen": 1}


@pytest.fixture
def extents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[FleetRun]:
    """How often each run was to move and to kill; a run measures nothing, and fails when it comes to traffic."""
    runs: list[FleetRun] = []

    async def run(
        _settings: Settings,
        progress: Callable[[str], None],
        publish: Callable[[Report], None],
        parts: Sequence[FleetPart],
        extent: FleetRun,
    ) -> Report:
        runs.append(extent)
        schedule: Schedule[FleetPart] = Schedule(Report("fleet", {"parts": []}), {}, progress, publish)
        schedule.expect({part: extent.seconds(part) for part in parts})
        for part in parts:
            await schedule.measure(part, partial(measured, part))
        return schedule.report

    monkeypatch.setattr(fleet, "run", run)
    monkeypatch.chdir(tmp_path)
    return runs


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", "fleet", "--json", "fleet.json", *arguments])


@pytest.mark.usefixtures("extents")
def test_the_help_names_all_parts() -> None:
    run = CliRunner().invoke(app, ["bench", "fleet", "--help"], env={"COLUMNS": "200"})
    assert "|".join(FleetPart) in run.stdout


def test_selected_parts_are_measured_in_their_order_and_as_often_as_is_said(extents: list[FleetRun]) -> None:
    run = bench("--only", "kills", "--only", "moves", "--moves", "2", "--kills", "3")
    assert run.exit_code == 0
    assert extents == [FleetRun(2, 3)]
    titles = [line.strip() for line in run.stdout.splitlines() if line.startswith(("table", "summary"))]
    assert titles == ["table of moves", "table of kills", "summary"]
    assert "this takes about" in run.stderr


def test_what_was_measured_before_a_failure_stands(extents: list[FleetRun]) -> None:
    run = bench()
    assert run.exit_code == 1
    assert extents == [FleetRun(20, 20)]
    document = json.loads(Path("fleet.json").read_text())
    assert document["summary"] == {"moves_seen": 1, "drain_seen": 1}
    assert document["context"]["parts"] == ["moves", "drain"]
