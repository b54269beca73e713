"""Whether KV may be reused on an engine at all.

LMCache's connector loads KV also where vLLM itself would not continue from KV that it has: behind a loaded prefix such an engine
computes wrong KV, and its answers say nothing of it. A block that does not divide a chunk ends the stock connector, and the engine
with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

CACHE_OFF = "vLLM's prefix cache is off, because of its options or of this model on this device, so LMCache stores and loads nothing."


def no_reuse(caches: bool, blocks: Sequence[int], chunk: Callable[[], int | None]) -> str:
    """Why the engine neither loads nor stores KV, as a sentence; empty where it does.

    ``caches``: whether vLLM's own prefix cache is on. ``blocks``: the tokens in a block of each group of layers, 0 for a group without
    KV. ``chunk``: asks LMCache for the tokens in a chunk; None where it does not say.
    """
    if not caches:
        return CACHE_OFF
    size = chunk()
    misfit = next((block for block in blocks if size and block and size % block), None)
    if misfit is None:
        return ""
    return f"A block of vLLM has {misfit} tokens, which do not divide LMCache's chunk of {size}, so LMCache stores and loads nothing."
