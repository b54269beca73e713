"""What is installed from the lists of pinned packages, and how."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", ["Makefile", "Dockerfile"])
def test_pip_takes_what_a_list_names_and_looks_for_nothing_newer(file: str) -> None:
    installs = [line for line in (ROOT / file).read_text().splitlines() if "pip install" in line]
    from_lists = [line for line in installs if " -r " in line]

    assert from_lists
    assert [line for line in from_lists if "--require-hashes --no-deps " not in line] == []


def test_nothing_that_was_installed_needs_what_no_list_names() -> None:
    check = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )

    assert check.returncode == 0, check.stdout + check.stderr
