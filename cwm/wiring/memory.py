"""How a process that runs for weeks has its memory kept."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

# Of mallopt(3).
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_THRESHOLD_BYTES: Final = 128 * 1024


def settle_memory() -> None:
    """Once all has started. What exists lives as long as the process: collecting it makes the long tail of latency.

    Where the collector was off until now, next to nothing is garbage: looking for it would take 0.2 s of the start.

    What calls leave behind is collected in small pieces: it takes the same time in all, and nobody waits for it long.

    What is freed later goes back to the system. glibc would raise its thresholds to the largest piece that was ever
    freed, and keep holes of that size.
    """
    if gc.isenabled():
        gc.collect()
    gc.freeze()
    gc.enable()
    # Bypass (decision 0028): garbage in small pieces, so that no request waits up to 95 ms for it.
    gc.set_threshold(5_000, 10, 100)
    with suppress(AttributeError, OSError, TypeError):  # another C library
        libc = ctypes.CDLL(None)
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            libc.mallopt(threshold, _THRESHOLD_BYTES)
