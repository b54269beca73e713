"""Knowing, of a process of this machine, that it is gone."""

from __future__ import annotations

import subprocess
import sys

from cwm.adapters.local import process


def test_a_process_names_itself_as_one_that_lives() -> None:
    assert process.has_ended(process.holder()) is False


def test_no_two_names_are_equal() -> None:
    assert process.holder() != process.holder()


def test_a_process_that_was_killed_has_ended_also_while_nobody_has_waited_for_it() -> None:
    say = "from cwm.adapters.local import process; print(process.holder(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", say], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        holder = child.stdout.readline().strip()
        assert process.has_ended(holder) is False
        child.kill()
        child.stdout.read()
        child.wait()
        assert process.has_ended(holder) is True


def test_another_process_under_the_same_number_is_another_one() -> None:
    machine, pid, started, rest = process.holder().rsplit(":", 3)
    assert process.has_ended(f"{machine}:{pid}:{int(started) - 1}:{rest}") is True


def test_processes_of_other_machines_are_not_known() -> None:
    _, pid, started, rest = process.holder().rsplit(":", 3)
    assert process.has_ended(f"elsewhere:{pid}:{started}:{rest}") is None
    assert process.has_ended("") is None
