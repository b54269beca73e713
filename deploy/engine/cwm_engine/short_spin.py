"""Makes vLLM's processes wait for each other without keeping a core busy.

A vLLM process that waits for a message polls in a busy loop for a second before it sleeps. On a CPU engine that
second is taken from LMCache and Redis just when they store or load the request's KV: 8,064 tokens took 690 ms to
load right after a request, and 440 ms a second later.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

# Not 0: a wake-up within about a millisecond of the previous one can be lost.
SPIN_SECONDS = 0.02
# Bounds the delay of a lost wake-up, which vLLM would notice after 5 s.
SLEEP_MS = 50


def spin_shortly() -> None:
    """Shorten the busy loop in this process from now on."""
    wait = SpinCondition.wait

    def wait_shortly(condition: Any, timeout_ms: int | None = None) -> None:
        condition.busy_loop_s = SPIN_SECONDS
        wait(condition, SLEEP_MS if timeout_ms is None else min(timeout_ms, SLEEP_MS))

    SpinCondition.wait = wait_shortly
