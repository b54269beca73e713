"""Populates the shared memory of LMCache's L1 at start, before the first load writes to it.

The kernel allocates shared memory page by page, at the first write to a page. Without this, the first load
into each new part of L1 takes three times as long as later ones.
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
    """Wait until this process has mapped its pool, and populate it; return the number of populated bytes.

    0 if there is no pool or the kernel does not support it: then pages are allocated as they are written.
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
    """Populate in slices: one call for the whole range would block memory mapping in every other thread."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for at in range(start, end, _SLICE_BYTES):
        if libc.madvise(at, min(_SLICE_BYTES, end - at), _POPULATE_WRITE) != 0:
            return at - start
    return end - start
