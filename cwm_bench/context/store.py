"""Shared context in process, as in a gateway: time and memory of its operations, and recovery.

``python -m cwm_bench.context.store fill|checkpoint|recover FOLDER STORE MEGABYTES`` measures in a process of its own
and prints JSON; STORE is ``sqlite`` or a URL.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

from cwm.adapters.sql import schema
from cwm.domain.principal import Principal
from cwm.domain.shared_context import ContextScope
from cwm.services.context.requests import Setting
from cwm.settings import Database, Engine, Isolation, Settings, Shared
from cwm.wiring.memory import settle_memory
from cwm.wiring.parts import Parts, build_parts
from cwm_bench.context.tokens import rss_mb
from cwm_bench.harness import token_corpus

SQLITE: Final = "sqlite"
WHO: Final = Principal("bench", "agent")
SCOPE: Final = ContextScope("bench", "workspace:bench", "workspace:bench")

T = TypeVar("T")

_NOWHERE: Final = "http://127.0.0.1:9"
_VALUE_CHARS: Final = 250_000
_SMALL_CHARS: Final = 2_000
# The first operations open connections and files.
_WARM: Final = 50
_KINDS: Final = ("json", "prose", "logs", "base64")
_TEXTS_OF_A_KIND: Final = 4
_LABEL: Final = "full"


@asynccontextmanager
async def opened(folder: Path, store: str) -> AsyncIterator[Parts]:
    """All parts of a gateway except its HTTP side, on SQLite in ``folder`` or the store at a URL."""
    settings = Settings(
        database=Database(db_path=folder / "cwm.db"),
        engine=Engine(vllm_url=_NOWHERE, lmcache_url="none", coordinator_url="none"),
        isolation=Isolation(secret="a benchmark's", tenant=WHO.tenant),  # noqa: S106 - guards nothing
        shared=Shared(shared_store_url=None if store == SQLITE else store),
    )
    parts = build_parts(settings)
    async with parts.close():
        if await schema.is_empty(parts.base.database):
            await schema.upgrade(settings.database.url())
        reading = asyncio.create_task(parts.base.shared.read())
        try:
            with _settled():
                yield parts
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading


@dataclass(slots=True)
class OperationTimes:
    """Wall-clock and processor time (all threads) of each operation of one kind, in ms."""

    milliseconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    async def time(self, work: Awaitable[T]) -> T:
        began, cpu = time.perf_counter(), time.process_time()
        result = await work
        self.milliseconds.append((time.perf_counter() - began) * 1000)
        self.cpu.append((time.process_time() - cpu) * 1000)
        return result


async def operations(folder: Path, store: str, rounds: int) -> dict[str, OperationTimes]:
    """Set and get values of 2 KB, then list keys of the scope that holds them."""
    sets, gets, lists = OperationTimes(), OperationTimes(), OperationTimes()
    text = token_corpus.text("json", _SMALL_CHARS)
    async with opened(folder, store) as parts:
        context = parts.services.shared_context
        for number in range(_WARM + rounds):
            value = {"number": number, "text": text}
            await sets.time(context.set(WHO, SCOPE, Setting(f"key/{number}", value)))
        for number in range(_WARM + rounds):
            entry = await gets.time(context.get(SCOPE, f"key/{number}"))
            _require(entry.value["number"] == number, "a value that was not set was read")
        for number in range(_WARM + rounds // 4):
            page = await lists.time(context.list(SCOPE, f"key/{number % 10}", None, 50))
            _require(len(page.entries) > 0, "keys are missing from a list")
    kinds = {"set": sets, "get": gets, "list": lists}
    return {
        what: OperationTimes(times.milliseconds[_WARM:], times.cpu[_WARM:]) for what, times in kinds.items()
    }


async def fill(folder: Path, store: str, megabytes: int) -> dict[str, Any]:
    """Store ``megabytes`` of different values: how much this process grows."""
    async with opened(folder, store) as parts:
        context = parts.services.shared_context
        texts = _texts()
        await _set(context, texts, 0, "warm")
        gc.collect()
        before, began = rss_mb(), time.perf_counter()
        count = _count(megabytes)
        most = before
        for number in range(count):
            await _set(context, texts, number, "fill")
            most = max(most, rss_mb())
        cache = parts.agent_side.contents.cache
        return {
            "seconds": round(time.perf_counter() - began, 3),
            "rss_mb": round(rss_mb() - before, 1),
            "rss_peak_mb": round(most - before, 1),
            "counted_mb": round(cache.used_bytes / 2**20, 1),
            "limit_mb": round(cache.limit_bytes / 2**20, 1),
            "budget_mb": round(cache.budget_bytes / 2**20, 1),
        }


async def checkpoint(folder: Path, store: str, megabytes: int) -> dict[str, float]:
    """Seconds of a snapshot of ``megabytes``, and of its restore after every key was overwritten."""
    async with opened(folder, store) as parts:
        context, texts = parts.services.shared_context, _texts()
        for number in range(_count(megabytes)):
            await _set(context, texts, number, "fill")
        began = time.perf_counter()
        await context.snapshot(WHO, SCOPE, _LABEL)
        snapshot_end = time.perf_counter()
        for number in range(_count(megabytes)):
            await context.set(WHO, SCOPE, Setting(_key(number), "overwritten"))
        restore_start = time.perf_counter()
        restored = await context.restore(WHO, SCOPE, _LABEL)
        restore_end = time.perf_counter()
        _require(restored.written == _count(megabytes), "not every key was restored")
        return {
            "snapshot_s": round(snapshot_end - began, 4),
            "restore_s": round(restore_end - restore_start, 4),
        }


async def recover(folder: Path, store: str, megabytes: int) -> dict[str, Any]:
    """Read everything that another process stored: seconds from the start of this process, and wrong values."""
    started, began = _seconds_since_start(), time.perf_counter()
    async with opened(folder, store) as parts:
        context = parts.services.shared_context
        opened_at = time.perf_counter()
        readings = [await context.get(SCOPE, _key(number)) for number in range(_count(megabytes))]
        ended, cpu = time.perf_counter(), time.process_time()
    texts = _texts()
    return {
        "start_s": round(started, 3),
        "open_s": round(opened_at - began, 3),
        "read_s": round(ended - opened_at, 3),
        "cpu_s": round(cpu, 3),
        "recovery_s": round(started + ended - began, 3),
        "megabytes": round(sum(each.entry.size for each in readings if each.entry) / 1e6, 1),
        "wrong": sum(each.value != _value(texts, number, "fill") for number, each in enumerate(readings)),
    }


async def _set(context: Any, texts: list[str], number: int, what: str) -> None:
    await context.set(WHO, SCOPE, Setting(_key(number), _value(texts, number, what)))


def _value(texts: list[str], number: int, what: str) -> dict[str, Any]:
    return {"is": f"{what} {number}", "text": texts[number % len(texts)]}


def _key(number: int) -> str:
    return f"large/{number}"


def _count(megabytes: int) -> int:
    return megabytes * 1_000_000 // _VALUE_CHARS


def _texts() -> list[str]:
    """Texts of the same ASCII length, so that sizes in megabytes are exact."""
    texts: Iterator[str] = (
        token_corpus.text(kind, _VALUE_CHARS, seed).encode("ascii", "replace").decode()
        for kind in _KINDS
        for seed in range(_TEXTS_OF_A_KIND)
    )
    return list(texts)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


def _seconds_since_start() -> float:
    """Age of this process, which includes its imports."""
    after_boot = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - after_boot / os.sysconf("SC_CLK_TCK")


@contextmanager
def _settled() -> Iterator[None]:
    """Garbage collector settings as in a started gateway."""
    before = gc.get_threshold()
    settle_memory()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def main(what: str, folder: str, store: str, megabytes: str) -> None:
    work = {"fill": fill, "recover": recover, "checkpoint": checkpoint}[what]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(work(Path(folder), store, int(megabytes)))
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
