from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer._click import Command
from typer.main import get_command

from cwm import __version__
from cwm.cli.root import app
from tests.cli.command import cwm, refused

pytestmark = pytest.mark.slow


def every_command() -> dict[tuple[str, ...], Command]:
    found: dict[tuple[str, ...], Command] = {}

    def walk(command: Command, path: tuple[str, ...]) -> None:
        found[path] = command
        for name, sub in getattr(command, "commands", {}).items():
            walk(sub, (*path, name))

    walk(get_command(app), ())
    return found


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_command_and_each_of_its_parameters_explains_itself(path: tuple[str, ...]) -> None:
    command = every_command()[path]

    assert command.help
    assert [parameter.name for parameter in command.params if not getattr(parameter, "help", None)] == []


@pytest.mark.parametrize(
    "path", [(), ("serve",), ("windows",), ("windows", "freeze"), ("demo",)], ids=" ".join
)
def test_help_is_printed_and_no_failure(tmp_path: Path, path: tuple[str, ...]) -> None:
    run = cwm(tmp_path, *path, "--help")

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip().startswith(f"Usage: cwm {' '.join(path)}".strip())


def test_help_loads_nothing_that_takes_long() -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cwm", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rsplit("|", 1)[-1].strip() for line in run.stderr.splitlines()}
    assert "cwm.cli.root" in loaded
    assert not loaded & {
        "sqlalchemy",
        "fastmcp",
        "fastapi",
        "httpx2",
        "uvicorn",
        "alembic",
        "prometheus_client",
    }


def test_the_version_is_the_package_s(tmp_path: Path) -> None:
    assert cwm(tmp_path, "--version").stdout == f"cwm {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("thwa",),
        ("windows", "list", "--limit", "0"),
        ("windows", "list", "--sort", "age"),
        ("windows", "freeze", "only-a-session"),
        ("serve", "--port", "70000"),
        ("demo", "--kill", "everything"),
        ("sessions", "list", "--url", "gateway:8700"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_no_traceback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run = cwm(tmp_path, *arguments)

    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert "Usage: cwm" in run.stderr


@pytest.mark.parametrize(
    "command", [("serve",), ("stdio",), ("up",), ("migrate",), ("doctor",), ("windows", "list")]
)
def test_a_bad_setting_is_one_sentence_that_names_it(tmp_path: Path, command: tuple[str, ...]) -> None:
    sentence = refused(cwm(tmp_path, *command, CWM_PORT="ninety"), "CWM-1003", status=2)

    assert "CWM_PORT" in sentence


@pytest.mark.parametrize("command", [("migrate",), ("windows", "list")], ids=" ".join)
def test_a_command_that_serves_nobody_needs_no_secret_of_an_upstream(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "cwm.yaml").write_text(
        "http: {port: 9}\nupstreams: {docs: {command: x, env: {A: '${DOCS_KEY}'}}}"
    )

    assert "DOCS_KEY" not in cwm(tmp_path, *command).stderr
    assert "DOCS_KEY" in refused(cwm(tmp_path, "serve"), "CWM-1003", status=2)


def test_a_flag_is_checked_like_its_setting(tmp_path: Path) -> None:
    sentence = refused(cwm(tmp_path, "serve", "--host", "0.0.0.0"), "CWM-1003", status=2)

    assert "loopback" in sentence
    assert "CWM_API_KEYS" in sentence
    assert not (tmp_path / "cwm.db").exists()
