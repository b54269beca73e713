"""How long vLLM's own processes look for a message before they sleep, with vLLM's own class."""

from __future__ import annotations

import asyncio
import json

import pytest

from cwm import shipped
from cwm.stack.environment import Pins, prepare_environment
from tests.live.engine import engine_home

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

_SCRIPT = """
import json, time, zmq
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from cwm_engine.short_spin import SLEEP_MS, SPIN_SECONDS, spin_shortly

address, context = "inproc://notify", zmq.Context()
writer = SpinCondition(is_reader=False, context=context, notify_address=address)
reader = SpinCondition(is_reader=True, context=context, notify_address=address)
poll = reader.poller.poll

class Poller:
    slept = 0
    longest = None
    def poll(self, timeout):
        self.slept += 1
        self.longest = timeout
        return poll(timeout=timeout)

reader.poller = Poller()

def slept(seconds_after_a_read):
    before, reader.last_read = reader.poller.slept, time.monotonic() - seconds_after_a_read
    reader.wait(timeout_ms=1)
    return reader.poller.slept > before

stock = slept(2 * SPIN_SECONDS)
spin_shortly()
ours = slept(2 * SPIN_SECONDS)
reader.last_read = time.monotonic() + 60
spinning = reader.poller.slept
reader.wait(timeout_ms=1)
spinning = reader.poller.slept == spinning
reader.last_read = 0
while True:
    writer.notify()
    if dict(poll(timeout=100)):
        break
reader.wait(timeout_ms=None)
longest = [reader.poller.longest]
for asked in (5000, 1):
    reader.last_read = 0
    reader.wait(timeout_ms=asked)
    longest.append(reader.poller.longest)
bounded = longest == [SLEEP_MS, SLEEP_MS, 1]
print(json.dumps({"stock": stock, "ours": ours, "right after a read": not spinning, "woken": True, "bounded": bounded}))
"""


async def test_a_process_of_vllm_that_waits_for_another_soon_sleeps_and_is_woken() -> None:
    engine = await prepare_environment(engine_home(), Pins.for_device("cpu"), print)
    process = await asyncio.create_subprocess_exec(
        engine.python,
        "-c",
        _SCRIPT,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(shipped.folder("engine"))},
    )
    said, _ = await process.communicate()
    slept = json.loads(said.splitlines()[-1])
    assert slept == {
        "stock": False,
        "ours": True,
        "right after a read": False,
        "woken": True,
        "bounded": True,
    }
