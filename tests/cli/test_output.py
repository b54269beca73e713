"""Standard output that takes nothing: one sentence, and nothing done that would be lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import cwm, environment, refused

pytestmark = pytest.mark.slow


def into(
    redirection: str, folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-m", "cwm", *arguments],
        env=environment(folder, variables),
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


def keys(folder: Path) -> list[dict[str, str]]:
    listed: list[dict[str, str]] = json.loads(cwm(folder, "keys", "list", "--json").stdout)["keys"]
    return listed


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, unbuffered: str) -> None:
    assert cwm(tmp_path, "keys", "create", "ci", "--scope", "admin").returncode == 0
    for arguments in (("--version",), ("--help",), ("keys", "list"), ("audit", "export"), ("audit", "list")):
        run = into("> /dev/full", tmp_path, *arguments, PYTHONUNBUFFERED=unbuffered)
        assert "No space left" in refused(run, "CWM-4001")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_key_that_cannot_be_shown_is_named(tmp_path: Path, unbuffered: str, form: tuple[str, ...]) -> None:
    create = ("keys", "create", "ci", "--scope", "admin", *form)
    sentence = refused(into("> /dev/full", tmp_path, *create, PYTHONUNBUFFERED=unbuffered), "CWM-4001")
    (made,) = keys(tmp_path)
    assert f"cwm keys revoke {made['key_id']}" in sentence


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_enough_is_no_fault_to_tell(tmp_path: Path, unbuffered: str) -> None:
    assert cwm(tmp_path, "keys", "create", "ci", "--scope", "admin").returncode == 0
    for arguments in (("keys", "list"), ("audit", "export")):
        # The reader is gone before anything is written.
        read, write = os.pipe()
        os.close(read)
        run = subprocess.run(
            [sys.executable, "-m", "cwm", *arguments],
            env=environment(tmp_path, {"PYTHONUNBUFFERED": unbuffered}),
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        os.close(write)
        assert (run.returncode, run.stderr) == (1, "")


def test_with_standard_output_closed_nothing_is_done(tmp_path: Path) -> None:
    refused(into(">&-", tmp_path, "keys", "create", "ci", "--scope", "admin"), "CWM-4001")
    assert keys(tmp_path) == []


def test_a_closed_standard_input_is_an_empty_one(tmp_path: Path) -> None:
    for arguments in (("windows", "delete", "x"), ("sessions", "generate", "x", "-m", "-")):
        refused(into("<&- >/dev/null", tmp_path, *arguments, "--url", "http://127.0.0.1:9"), "CWM-5001")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_has_not_is_escaped_and_json_stays_json(encoding: str) -> None:
    name = "é … 👍"
    said = (
        "from cwm.cli.terminal.output import check_streams; check_streams()\n"
        "from cwm.cli.terminal.console import print_json, tell\n"
        f"tell({name!a}); print_json({name!a})"
    )
    run = subprocess.run(
        [sys.executable, "-c", said],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    line, document = run.stdout.splitlines()
    assert line == name.encode(encoding, "backslashreplace")
    assert json.loads(document.decode(encoding)) == name
