"""With ``CWM_LOG_FORMAT=json`` every line of a command that a container runs is JSON, the first and the last too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import cwm, environment

pytestmark = pytest.mark.slow


def documents(run: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert run.stdout == "", "the log goes to stderr"
    return [json.loads(line) for line in run.stderr.splitlines()]


def test_a_gateway_says_where_it_is_and_that_it_stopped_in_json(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cwm", "serve", "--port", "0"],
        cwd=tmp_path,
        env=environment(tmp_path, {"CWM_LOG_FORMAT": "json"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "CWM is ready" in line:
                process.terminate()
        printed = process.stdout.read()

    said = [json.loads(line) for line in lines]
    assert printed == ""
    assert (said[-1]["event"], said[-1]["level"]) == ("Stopped.", "info")
    assert all("timestamp" in line for line in said)


def test_a_migration_says_what_it_applied_in_json(tmp_path: Path) -> None:
    said = documents(cwm(tmp_path, "migrate", CWM_LOG_FORMAT="json"))

    assert said[0]["event"].startswith("Applied 0001")
    assert said[-1]["event"] == "The schema is up to date."


@pytest.mark.parametrize(
    ("command", "variables", "code"),
    [
        ("migrate", {"CWM_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}, "CWM-4001"),
        ("serve", {"CWM_PORT": "many"}, "CWM-1003"),
        ("room", {"CWM_LMCACHE_URL": "none"}, "CWM-5001"),
    ],
)
def test_a_refusal_is_json_with_its_code(
    tmp_path: Path, command: str, variables: dict[str, str], code: str
) -> None:
    run = cwm(tmp_path, command, CWM_LOG_FORMAT="json", **variables)
    last = documents(run)[-1]

    assert run.returncode != 0
    assert (last["level"], last["code"]) == ("error", code)


def test_the_format_may_stand_in_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "cwm.yaml").write_text("logging:\n  log_format: json\n")

    assert documents(cwm(tmp_path, "migrate"))[-1]["event"] == "The schema is up to date."


def test_what_people_run_is_not_json(tmp_path: Path) -> None:
    run = cwm(tmp_path, "engine", "command", "tiny", CWM_LOG_FORMAT="json")

    assert run.stderr.startswith("CWM-5001: ")
