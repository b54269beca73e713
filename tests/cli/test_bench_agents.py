"""``cwm bench agents`` on the command line: its parts, and what it writes as soon as each is measured."""

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
from cwm_bench.agents import run as agents
from cwm_bench.agents.parts import SECONDS, AgentsPart
from cwm_bench.harness.figures import Report, Section
from cwm_bench.harness.schedule import Schedule


async def measured(part: AgentsPart) -> tuple[Section, dict[str, Any]]:
    if part is AgentsPart.RESUME:
        raise RuntimeError("the engine ended")
    return Section(f"table of {part}", ("what was measured", "milliseconds"), [("some", 1.5)]), {
        f"{part}_ms": {"chat": 1.5}
    }


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path | None]:
    """LiteLLM's program in each run; a run measures nothing, and fails when it comes to resumed conversations."""
    runs: list[Path | None] = []

    async def run(
        _settings: Settings,
        progress: Callable[[str], None],
        publish: Callable[[Report], None],
        parts: Sequence[AgentsPart],
        litellm: Path | None,
    ) -> Report:
        runs.append(litellm)
        schedule: Schedule[AgentsPart] = Schedule(Report("agents", {"parts": []}), {}, progress, publish)
        schedule.expect({part: SECONDS[part] for part in parts})
        for part in parts:
            await schedule.measure(part, partial(measured, part))
        return schedule.report

    monkeypatch.setattr(agents, "run", run)
    monkeypatch.chdir(tmp_path)
    return runs


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", "agents", "--json", "agents.json", *arguments])


@pytest.mark.usefixtures("programs")
def test_the_help_names_all_parts() -> None:
    run = CliRunner().invoke(app, ["bench", "agents", "--help"], env={"COLUMNS": "200"})
    assert "|".join(AgentsPart) in run.stdout


def test_selected_parts_are_measured_in_their_order_beside_the_named_program(
    programs: list[Path | None],
) -> None:
    run = bench("--only", "throughput", "--only", "first-byte", "--litellm", "/opt/litellm")
    assert run.exit_code == 0
    assert programs == [Path("/opt/litellm")]
    titles = [line.strip() for line in run.stdout.splitlines() if line.startswith(("table", "summary"))]
    assert titles == ["table of first-byte", "table of throughput", "summary"]
    assert "this takes about" in run.stderr


@pytest.mark.usefixtures("programs")
def test_what_was_measured_before_a_failure_stands() -> None:
    run = bench()
    assert run.exit_code == 1
    document = json.loads(Path("agents.json").read_text())
    assert document["summary"] == {"first-byte_ms": {"chat": 1.5}, "throughput_ms": {"chat": 1.5}}
    assert document["context"]["parts"] == ["first-byte", "throughput"]
