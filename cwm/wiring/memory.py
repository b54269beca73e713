"""Memory settings of a process that runs for weeks."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

# Parameter numbers of mallopt(3).
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_THRESHOLD_BYTES: Final = 128 * 1024


def settle_memory() -> None:
    """Set up the garbage collector and the allocator. Call once, when everything has started.

    Objects that exist now live as long as the process, so they are frozen: scanning them causes the long tail of
    latency. If the collector was off until now, almost nothing is garbage, and a collection would cost 0.2 s of start.

    Later garbage is collected in small generations: the total time is the same, and no request waits long.

    Freed memory goes back to the system. By default glibc raises its thresholds to the largest block ever freed and
    keeps holes of that size.
    """
    if gc.isenabled():
        gc.collect()
    gc.freeze()
    gc.enable()
    # Bypass (decision 0028): garbage in small pieces, so that no request waits up to 95 ms for it.
    gc.set_threshold(5_000, 10, 100)
    with suppress(AttributeError, OSError, TypeError):  # a C library without mallopt
        libc = ctypes.CDLL(None)
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            libc.mallopt(threshold, _THRESHOLD_BYTES)
