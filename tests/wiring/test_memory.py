"""What settling a process's memory collects; each time in a process of its own, whose collector it may keep."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_SETTLING = """
import gc, json, sys, weakref
from cwm.wiring.memory import settle_memory

class Cycle:
    def __init__(self):
        self.itself = self

{before}
garbage = weakref.ref(Cycle())
runs = []
gc.callbacks.append(lambda phase, info: runs.append(phase))
settle_memory()
print(json.dumps([len(runs), garbage() is None, gc.isenabled(), gc.get_freeze_count()]))
"""


def test_a_start_without_the_collector_is_frozen_as_it_is_and_has_it_from_then_on() -> None:
    runs, _collected, enabled, frozen = _settled("gc.disable()")
    assert runs == 0
    assert enabled
    assert frozen > 10_000


def test_what_an_earlier_life_of_the_process_left_behind_is_collected_and_not_kept_for_ever() -> None:
    runs, collected, enabled, frozen = _settled("gc.enable()")
    assert runs > 0
    assert collected
    assert enabled
    assert frozen > 10_000


def _settled(before: str) -> Any:
    program = _SETTLING.format(before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
