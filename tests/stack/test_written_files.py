"""Files of a stack in a storage folder that others may have made: a link in it leads to no other file."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from cwm.stack.child import Child
from cwm.stack.logs import LogWatch, fresh_log
from cwm.stack.private_files import keyring, write_private_json
from cwm.stack.tool import run_tool


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "storage"
    path.mkdir()
    return path


def untouched(victim: Path) -> bool:
    return victim.read_text() == "precious"


def test_the_keys_are_written_under_a_name_that_no_link_can_wait_under(folder: Path, victim: Path) -> None:
    (folder / f".kv.keys.{os.getpid()}").symlink_to(victim)
    path = keyring(folder)
    assert len(path.read_text().split()[-1]) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert victim.read_text() == "precious"


def test_private_arguments_take_the_place_of_a_link(folder: Path, victim: Path) -> None:
    path = folder / "arguments.json"
    path.symlink_to(victim)
    write_private_json(path, {"password": "x"})
    assert json.loads(path.read_text()) == {"password": "x"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("dangling", [False, True])
def test_a_new_log_takes_the_place_of_a_link(folder: Path, victim: Path, dangling: bool) -> None:
    target = victim.with_name("new") if dangling else victim
    (folder / "vllm.log").symlink_to(target)
    log = fresh_log(folder, "vllm")
    assert not log.is_symlink()
    assert (log.read_text(), victim.read_text()) == ("", "precious")
    assert not victim.with_name("new").exists()


def test_a_log_that_grew_too_large_is_kept_in_no_other_file(folder: Path, victim: Path) -> None:
    log = fresh_log(folder, "vllm")
    (folder / "vllm.log.1").symlink_to(victim)
    watch = LogWatch(log, largest_bytes=10)
    log.write_text("a line that is longer than that\n")
    watch.errors()
    assert (folder / "vllm.log.1").read_text() == "a line that is longer than that\n"
    assert victim.read_text() == "precious"


async def test_no_program_writes_its_output_through_a_link(folder: Path, victim: Path) -> None:
    log = folder / "pip.log"
    log.symlink_to(victim)
    program = [sys.executable, "-c", "print('hello')"]
    with pytest.raises(OSError, match="is a link"):
        await Child.start(program, {}, log)
    async with asyncio.timeout(60):
        with pytest.raises(OSError, match="is a link"):
            await run_tool(program, log)
    assert untouched(victim)
