"""``cwm bench main`` on the command line: which parts it takes, and what it leaves when it is interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cwm.cli.root import app
from cwm.settings import Settings
from cwm_bench.harness.figures import Report, Section
from cwm_bench.harness.schedule import Schedule
from cwm_bench.main import run as main
from cwm_bench.main.parts import Part, Repetitions


async def measured(part: Part) -> tuple[Section, dict[str, Any]]:
    return Section(f"table of {part}", ("figure", "ms"), [("some", 1.5)]), {f"{part}_ms": 1.5}


async def interrupted() -> tuple[Section, dict[str, Any]]:
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()
    raise AssertionError


@pytest.fixture
def repetitions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Repetitions]:
    """The repetitions of each run; a run measures nothing, and is interrupted when it comes to the memory."""
    runs: list[Repetitions] = []

    async def run(
        _settings: Settings,
        progress: Callable[[str], None],
        publish: Callable[[Report], None],
        parts: Sequence[Part],
        repetitions: Repetitions,
    ) -> Report:
        runs.append(repetitions)
        schedule: Schedule[Part] = Schedule(Report("main", {"parts": []}), {}, progress, publish)
        schedule.expect(dict.fromkeys(parts, 1.0))
        for part in parts:
            await schedule.measure(part, interrupted if part is Part.MEMORY else partial(measured, part))
        return schedule.report

    monkeypatch.setattr(main, "run", run)
    monkeypatch.chdir(tmp_path)
    return runs


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", "main", "--json", "main.json", *arguments])


def document() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path("main.json").read_text())
    return read


def test_an_unknown_part_is_refused_with_the_names_of_all(repetitions: list[Repetitions]) -> None:
    run = bench("--only", "frieze")
    assert run.exit_code == 2
    assert "frieze" in run.stderr
    assert all(part.value in run.stderr for part in Part)
    assert not repetitions


@pytest.mark.usefixtures("repetitions")
def test_the_help_names_all_parts() -> None:
    run = CliRunner().invoke(app, ["bench", "main", "--help"], env={"COLUMNS": "200"})
    assert "|".join(Part) in run.stdout


@pytest.mark.usefixtures("repetitions")
def test_selected_parts_are_measured_in_their_order_and_are_all_that_the_file_has() -> None:
    run = bench("--only", "lists", "--only", "freeze")
    assert run.exit_code == 0
    assert [section["title"] for section in document()["sections"]] == ["table of freeze", "table of lists"]
    assert document()["summary"] == {"freeze_ms": 1.5, "lists_ms": 1.5}
    titles = [line.strip() for line in run.stdout.splitlines() if line.startswith(("table", "summary"))]
    assert titles == ["table of freeze", "table of lists", "summary"]


@pytest.mark.usefixtures("repetitions")
def test_what_was_measured_before_an_interrupt_stands() -> None:
    run = bench("--only", "freeze", "--only", "memory", "--only", "lists")
    assert run.exit_code == 130
    assert "table of freeze" in run.stdout
    assert document()["summary"] == {"freeze_ms": 1.5}
    assert document()["context"]["parts"] == ["freeze"]


def test_a_thorough_run_repeats_more_and_requests_are_as_given(repetitions: list[Repetitions]) -> None:
    bench("--only", "lists")
    bench("--only", "lists", "--thorough", "--requests", "7")
    usual, thorough = repetitions
    assert thorough.requests == 7
    assert (thorough.freezes, thorough.rounds) > (usual.freezes, usual.rounds)
