"""Agents of one team read overlapping files: how often reads are shared, and how much storage deduplication saves."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cwm.domain.canonical import canonical_json
from cwm.services.contents.form import stored_form
from cwm_bench.harness import servers, token_corpus
from cwm_bench.harness.agents import ERAS, SHARED, Agent, agent
from cwm_bench.harness.goals import Figure, at_least, percentile

_COMPRESS_ABOVE: Final = 1024
_KINDS: Final = ("code", "prose", "json", "logs")
_WRITES: Final = 4
_TTL_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class Workload:
    """Each agent makes ``reads`` reads of ``files`` files: a few files often, most rarely."""

    agents: int = 8
    reads: int = 60
    files: int = 40


@dataclass(slots=True)
class _Reads:
    shared: int = 0
    stale: int = 0
    milliseconds: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})

    @property
    def rate(self) -> float:
        return round(self.shared / sum(map(len, self.milliseconds.values())), 4)


async def measure(folder: Path, load: Workload) -> list[Figure]:
    """Measure on a new gateway and upstream whose reading tools may be shared."""
    files = _files(folder / "files", load.files)
    async with servers.library(folder / "files") as upstream:
        document = {
            "results": {"max_tokens": "unlimited", "window_tokens": "unlimited"},
            "upstreams": {"files": {"url": upstream.url, "stateless": True}},
            "tools": {"files_read_*": {"cache": {"ttl_seconds": _TTL_SECONDS}}},
        }
        async with servers.gateway(folder, document, None) as gateway, AsyncExitStack() as stack:
            team = [
                await stack.enter_async_context(agent(gateway.url, ERAS[number % len(ERAS)]))
                for number in range(load.agents)
            ]
            direct = await stack.enter_async_context(agent(upstream.url, ERAS[0]))
            undisturbed = await _read(team, files, load, writes=0)
            upstream_calls = await _upstream_calls(direct)
            disturbed = await _read(team, files, load, writes=_WRITES)
            at_once = await _read_at_once(team, direct, files)
            dedupe, whole = await _deduplication(team, files, load)
            memory = gateway.rss_mb()
    stale = undisturbed.stale + disturbed.stale
    return [
        Figure(
            "hit_rate",
            "reads answered from shared context",
            undisturbed.rate,
            "share",
            at_least(0.8),
            at_least(0.8),
        ),
        Figure("hit_rate_with_writes", f"the same, with {_WRITES} writes", disturbed.rate, "share"),
        Figure(
            "upstream_calls",
            f"calls of {load.agents * load.reads} that reached the upstream",
            upstream_calls,
            "calls",
        ),
        Figure("stale_answers", "answers that differ from the file", stale, "answers", None, None),
        Figure(
            "joined_calls",
            f"calls for a new file that {load.agents} agents read at once",
            at_once,
            "calls",
        ),
        Figure(
            "hit_ms",
            "a shared answer over the wire, median",
            percentile(undisturbed.milliseconds[True], 50),
            "ms",
        ),
        Figure(
            "miss_ms",
            "an answer of the upstream, median",
            percentile(undisturbed.milliseconds[False], 50),
            "ms",
        ),
        Figure(
            "dedupe_saving",
            "stored bytes saved by storing equal values once",
            dedupe,
            "share",
            at_least(0.3),
            at_least(0.3),
        ),
        Figure(
            "stored_share", "stored bytes of the bytes that agents set, compression included", whole, "share"
        ),
        Figure("gateway_rss_mb", "resident memory of that gateway afterwards", round(memory, 1), "MB"),
    ]


async def _read(team: list[Agent], files: dict[str, Path], load: Workload, writes: int) -> _Reads:
    """Agents read in turns, so that each answer can be compared with the file; every write ends the sharing."""
    reads, names = _Reads(), list(files)
    rng = random.Random(f"reads {writes}")  # noqa: S311 - repeatable, not secret
    often = [1 / (rank + 1) for rank in range(len(names))]
    for turn in range(load.reads):
        if writes and turn % max(1, load.reads // writes) == 0:
            path = files[names[turn % len(names)]]
            await team[0].call(
                "files_write_file", {"path": path.name, "text": f"{path.read_text()}\n# {turn}"}
            )
        for one in team:
            name = rng.choices(names, often)[0]
            result = await one.call("files_read_file", {"path": name})
            hit = SHARED in result.meta
            reads.shared += hit
            reads.stale += result.text != files[name].read_text()
            reads.milliseconds[hit].append(result.milliseconds)
    return reads


async def _read_at_once(team: list[Agent], direct: Agent, files: dict[str, Path]) -> int:
    """Upstream calls for a new file that all agents read at once."""
    path = next(iter(files.values())).with_name("new.txt")
    path.write_text("nobody has read this")
    before = await _upstream_calls(direct)
    await asyncio.gather(*(one.call("files_read_file", {"path": path.name}) for one in team))
    return await _upstream_calls(direct) - before


async def _upstream_calls(direct: Agent) -> int:
    """File requests that the upstream counted."""
    return int((await direct.call("count_calls")).text)


async def _deduplication(team: list[Agent], files: dict[str, Path], load: Workload) -> tuple[float, float]:
    """Each agent stores the files it read and half as many values of its own, in its own workspace.

    The share of stored bytes that deduplication saves, and stored bytes / bytes set.
    """
    rng = random.Random("keeps")  # noqa: S311 - repeatable, not secret
    before = await _tenant_bytes(team[0])
    apart = plain = 0
    for number, one in enumerate(team):
        names = rng.sample(list(files), min(len(files), load.reads // 2))
        values: dict[str, Any] = {name: {"path": name, "text": files[name].read_text()} for name in names}
        for note, name in enumerate(names[::2]):
            text = token_corpus.text("json", files[name].stat().st_size, 1_000 * number + note)
            values[f"notes/{note}"] = {"by": number, "text": text}
        for key, value in values.items():
            document = canonical_json(value)
            apart += len(stored_form(document, _COMPRESS_ABOVE))
            plain += len(document)
            await one.call("context_set", {"key": key, "value": value, "scope": f"workspace:agent-{number}"})
    stored_bytes = await _tenant_bytes(team[0]) - before
    return round(1 - stored_bytes / apart, 4), round(stored_bytes / plain, 4)


async def _tenant_bytes(one: Agent) -> int:
    stats = (await one.call("context_stats", {"scope": "tenant"})).value
    return int(stats["shared_store"]["used_bytes"])


def _files(root: Path, count: int) -> dict[str, Path]:
    """Source, prose, data and logs of 1 to 24 KB."""
    root.mkdir()
    rng = random.Random("files")  # noqa: S311 - repeatable, not secret
    files: dict[str, Path] = {}
    for number in range(count):
        kind = _KINDS[number % len(_KINDS)]
        path = root / f"{kind}_{number}.txt"
        path.write_text(token_corpus.text(kind, rng.randrange(1_000, 24_000), number))
        files[path.name] = path
    return files
