"""Populates LMCache's L1, the shared memory it is given at start, before the first load has to.

The kernel hands shared memory out page by page, when a page is first written. Left to that, the first load
into every new part of L1 takes three times as long as the ones after it.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_POOL = "/lmcache_l1_pool_"
_SLICE_BYTES = 64 << 20
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.1


def populate() -> int:
    """Wait until this process has mapped its pool and populate it; returns the bytes that were.

    0 where there is no pool or the kernel does not know how: then pages come as they are written.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (pools := _mapped()):
        if time.monotonic() > deadline:
            return 0
        time.sleep(_POLL_SECONDS)
    return sum(_populate(start, end) for start, end in pools)


def _mapped() -> list[tuple[int, int]]:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    spans = [line.split(maxsplit=1)[0].split("-") for line in lines if _POOL in line]
    return [(int(start, 16), int(end, 16)) for start, end in spans]


def _populate(start: int, end: int) -> int:
    """In slices: the whole of it at once would keep every other thread from mapping memory."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for at in range(start, end, _SLICE_BYTES):
        if libc.madvise(at, min(_SLICE_BYTES, end - at), _POPULATE_WRITE) != 0:
            return at - start
    return end - start
