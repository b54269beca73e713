"""Token counts: the error of the estimate, and the time and memory of a count."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.domain.token_estimate import COUNTED_CHARS
from cwm.stack.child import on_leash
from cwm_bench.harness import token_corpus
from cwm_bench.harness.figures import Section, median
from cwm_bench.harness.servers import rss_bytes

_LENGTHS: Final = (300_000, 600_000, 2_000_000)
_SEEDS: Final = 4
_SPEED_BYTES: Final = (100_000, 1_000_000)
_SPEED_ROUNDS: Final = 7
_RSS_PROGRAM: Final = """
from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm_bench.harness import token_corpus
from cwm_bench.context.tokens import rss_mb
texts = [token_corpus.text(kind, 300_000, seed) for kind in token_corpus.KINDS for seed in range(3)]
before = rss_mb()
counter = BpeTokenCounter()
counter.load()
loaded = rss_mb()
for text in texts:
    counter.count_whole(text)
print(loaded - before, rss_mb() - before)
"""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Relative errors against a full count of the same texts, by kind; negative where the estimate is too low."""

    errors: Mapping[str, Sequence[float]]

    @property
    def p95(self) -> float:
        """95th percentile of the absolute errors."""
        sizes = sorted(abs(error) for errors in self.errors.values() for error in errors)
        return round(sizes[max(0, -(-95 * len(sizes) // 100) - 1)], 4)

    def within(self, share: float) -> float:
        """The share of texts with an absolute error of at most ``share``."""
        sizes = [abs(error) for errors in self.errors.values() for error in errors]
        return round(sum(size <= share for size in sizes) / len(sizes), 4)

    @property
    def worst_under(self) -> float:
        """The largest underestimate; 0.0 without one."""
        return round(-min(0.0, *(min(errors) for errors in self.errors.values())), 4)


def estimates(counter: BpeTokenCounter, lengths: Sequence[int] = _LENGTHS, seeds: int = _SEEDS) -> Estimates:
    """Errors for texts above the size that is counted in full; shorter ones have no error."""
    assert min(lengths) > COUNTED_CHARS
    errors: dict[str, list[float]] = {}
    for kind in token_corpus.KINDS:
        for length in lengths:
            for seed in range(seeds):
                text = token_corpus.text(kind, length, seed)
                off = counter.count(text) / counter.count_whole(text) - 1
                errors.setdefault(kind, []).append(off)
    return Estimates(errors)


def milliseconds(
    counter: BpeTokenCounter, size: int = _SPEED_BYTES[0], rounds: int = _SPEED_ROUNDS
) -> dict[str, float]:
    """Median processor time per 100 KB of new texts of ``size`` bytes, by kind."""
    counter.load()
    return {
        kind: median([_timed(counter, kind, size, seed) for seed in range(rounds)])
        for kind in token_corpus.KINDS
    }


async def memory() -> tuple[float, float]:
    """MB that a separate process takes for the vocabulary, and after it counted 9 MB of text."""
    child = await asyncio.create_subprocess_exec(
        *on_leash([sys.executable, "-c", _RSS_PROGRAM]), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    start_mb, used_mb = (round(float(figure), 1) for figure in output.split())
    return start_mb, used_mb


async def measure(
    lengths: Sequence[int] = _LENGTHS, seeds: int = _SEEDS, rounds: int = _SPEED_ROUNDS
) -> tuple[Section, dict[str, Any]]:
    """A table, and a summary: errors are relative, ``estimate_ms_100kb`` is the slowest kind's median."""
    counter = BpeTokenCounter()
    short, long = (milliseconds(counter, size, rounds) for size in _SPEED_BYTES)
    start_mb, used_mb = await memory()
    accuracy = estimates(counter, lengths, seeds)
    section = Section(
        "counting tokens (o200k_base)",
        ("kind", "estimate off by %, lowest", "highest", "ms per 100 KB, of 100 KB", "of 1 MB"),
        note=f"estimates of {', '.join(f'{length:,}' for length in lengths)} characters against the whole count; "
        f"ms: processor time, text not seen before; memory {start_mb} MB loaded, {used_mb} MB after 9 MB of text",
    )
    for kind, errors in accuracy.errors.items():
        lowest, highest = (round(100 * error, 2) for error in (min(errors), max(errors)))
        section.rows.append((kind, lowest, highest, short[kind], long[kind]))
    return section, {
        "estimate_error_p95": accuracy.p95,
        "estimate_worst_under": accuracy.worst_under,
        "estimate_within_20_percent": accuracy.within(0.2),
        "estimate_ms_100kb": max(*short.values(), *long.values()),
        "estimate_memory_mb": used_mb,
    }


def rss_mb() -> float:
    """Resident memory of this process."""
    return rss_bytes(os.getpid()) / 2**20


def _timed(counter: BpeTokenCounter, kind: str, size: int, seed: int) -> float:
    text = token_corpus.text(kind, size, 1_000 + seed).encode()[:size].decode(errors="ignore")
    started = time.thread_time()
    counter.count(text)
    return (time.thread_time() - started) * 1000 * 100_000 / size
