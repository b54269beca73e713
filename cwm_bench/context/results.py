"""Large results delivered to agents: how many tokens, whether all can be read back, and how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.services.results.answers import count, parts_of
from cwm.stack.errors import StackError
from cwm_bench.context.reload import milliseconds_until
from cwm_bench.harness import captured, reference_servers, servers, token_corpus
from cwm_bench.harness.agents import ERAS, RESULT, Agent, ToolResult, agent, program
from cwm_bench.harness.figures import Section, median
from cwm_bench.harness.goals import Figure, at_least, percentile, under

_FILE: Final = "big.log"
_FOLDER: Final = "big"
_PAGE: Final = "page.txt"
_PAGE_BYTES: Final = 8_000
_RELOAD_KB: Final = 40
_SEEN_TOKENS: Final = (600, 1_500)


@dataclass(frozen=True, slots=True)
class Sizes:
    kilobytes: int = 220
    entries: int = 4_000
    reloads: int = 9


@dataclass(slots=True)
class _Totals:
    had: int = 0
    delivered: int = 0
    exact: bool = True
    results: int = 0


async def measure(
    folder: Path, sizes: Sizes, progress: Callable[[str], None]
) -> tuple[Section, list[Figure], list[Figure]]:
    """A table of every result in both eras, the savings and exactness, and how long a change of policy takes."""
    root = folder / "library"
    _fill(root, sizes)
    async with servers.library(root) as upstream:
        document = _document(upstream.url)
        async with servers.gateway(folder, document, None) as gateway, AsyncExitStack() as stack:
            section, totals = _table(), _Totals()
            pages, as_much = list[float](), list[float]()
            for era in ERAS:
                direct = await stack.enter_async_context(agent(upstream.url, era))
                one = await stack.enter_async_context(agent(gateway.url, era))
                for tool, arguments in _calls(sizes):
                    what = " ".join([tool, *filter(None, [arguments.get("name")])])
                    progress(f"{what}, {era}")
                    row, took = await _delivered(direct, one, tool, arguments, totals)
                    section.rows.append((f"{what}, {era}", *row))
                    pages += took
                    as_much += [(await direct.call("read_file", {"path": _PAGE})).milliseconds for _ in took]
            progress("changes of a policy")
            reloads = [await _reloaded(folder, upstream.url, one, number) for number in range(sizes.reloads)]
    own = totals.results
    await _reference(folder, root, sizes, progress, section, totals)
    saved_share = round(1 - totals.delivered / totals.had, 4)
    savings = [
        Figure(
            "tokens_saved", "tokens of large results not delivered", saved_share, "share", None, at_least(0.9)
        ),
        Figure("byte_exact", "results read back byte for byte", totals.exact, "", None, at_least(1)),
        Figure(
            "reference_results",
            "of them, of server-filesystem and server-everything",
            totals.results - own,
            "results",
            None,
            at_least(1),
        ),
        Figure(
            "page_overhead_ms",
            "a page over the wire, more than the upstream's own takes, medians",
            round(median(pages) - median(as_much), 3),
            "ms",
            under(50),
            under(5),
        ),
        Figure(
            "page_wire_ms",
            "a page of a stored result over the wire, median",
            percentile(pages, 50),
            "ms",
            under(50),
        ),
        Figure("page_wire_p99_ms", "the same, p99", percentile(pages, 99), "ms", under(50)),
    ]
    reloading = [
        Figure(
            "reload_ms",
            "from the write of cwm.yaml to another preview, median",
            median(reloads),
            "ms",
            under(100),
            under(100),
        ),
        Figure("reload_worst_ms", "the same, slowest", round(max(reloads), 1), "ms", under(100), under(100)),
    ]
    return section, savings, reloading


async def _reference(
    folder: Path,
    root: Path,
    sizes: Sizes,
    progress: Callable[[str], None],
    section: Section,
    totals: _Totals,
) -> None:
    """Results of the reference servers in both eras, or one row with the reason why they are missing."""
    progress("reference servers, from npm")
    home = folder / "reference"
    try:
        programs = await asyncio.to_thread(reference_servers.installed, home)
    except StackError as missing:
        section.rows.append((f"server-filesystem, server-everything: {missing}", *[""] * 8))
        return
    lines = {"filesystem": programs.filesystem(root), "everything": programs.everything()}
    variables = reference_servers.environment()
    document = {
        "upstreams": {name: {"command": list(line), "env": variables} for name, line in lines.items()}
    }
    async with servers.gateway(home, document, None) as gateway, AsyncExitStack() as stack:
        for name, line in lines.items():
            direct = await stack.enter_async_context(program(line, variables))
            for era in ERAS:
                one = await stack.enter_async_context(agent(gateway.url, era))
                for tool, arguments in _reference_calls(name, root, sizes):
                    what = " ".join([f"server-{name}", tool, *_file_of(arguments)])
                    progress(f"{what}, {era}")
                    row, _ = await _delivered(direct, one, tool, arguments, totals, upstream=name)
                    section.rows.append((f"{what}, {era}", *row))


def _reference_calls(name: str, root: Path, sizes: Sizes) -> list[tuple[str, dict[str, Any]]]:
    if name == "everything":
        return [("echo", {"message": token_corpus.text("mixed", sizes.kilobytes * 1000)})]
    files = [_FILE, *(f"{answer}.json" for answer in captured.NAMES)]
    return [
        *(("read_text_file", {"path": str(root / file)}) for file in files),
        ("list_directory", {"path": str(root / _FOLDER)}),
    ]


def _file_of(arguments: dict[str, Any]) -> list[str]:
    return [Path(arguments["path"]).name] if "path" in arguments else []


async def _delivered(
    direct: Agent,
    one: Agent,
    tool: str,
    arguments: dict[str, Any],
    totals: _Totals,
    *,
    upstream: str = "lib",
) -> tuple[tuple[Any, ...], list[float]]:
    """A row of the table, and the milliseconds of each page."""
    counter = BpeTokenCounter()
    whole, preview = (
        await direct.call(tool, arguments),
        await one.call(f"{upstream}_{tool}", arguments),
    )
    parts = parts_of(whole.answer)
    had, delivered = [(await count(each.answer, counter)).tokens for each in (whole, preview)]
    back = await one.read_back(preview.meta[RESULT]["cursor"])
    exact = [back.parts.get(number) for number in range(len(back.parts))] == [part.body for part in parts]
    totals.results += 1
    totals.had += had
    totals.delivered += delivered
    totals.exact = totals.exact and exact
    row = (
        round(sum(len(part.body) for part in parts) / 1000),
        had,
        delivered,
        round(1 - delivered / had, 4),
        len(back.milliseconds),
        "yes" if exact else "no",
        round(whole.milliseconds, 1),
        round(preview.milliseconds, 1),
    )
    return row, back.milliseconds


async def _reloaded(folder: Path, upstream_url: str, one: Agent, number: int) -> float:
    """Milliseconds from a write of cwm.yaml until a preview follows it."""
    tokens = _SEEN_TOKENS[number % len(_SEEN_TOKENS)]

    async def holds() -> bool:
        return _is_of(await one.call("lib_issues", {"kilobytes": _RELOAD_KB}), tokens)

    return await milliseconds_until(folder, _document(upstream_url, tokens), holds)


def _is_of(result: ToolResult, tokens: int) -> bool:
    delivered = int(result.meta[RESULT]["delivered_tokens"])
    return delivered <= _SEEN_TOKENS[0] if tokens == _SEEN_TOKENS[0] else delivered > _SEEN_TOKENS[0]


def _calls(sizes: Sizes) -> list[tuple[str, dict[str, Any]]]:
    of_size = {"kilobytes": sizes.kilobytes}
    return [
        ("issues", of_size),
        ("series", of_size),
        ("search", of_size),
        *(("captured", {"name": name}) for name in captured.NAMES),
        ("read_file", {"path": _FILE}),
        ("list_directory", {"path": _FOLDER}),
    ]


def _document(upstream_url: str, tokens: int | None = None) -> dict[str, Any]:
    """The defaults; ``tokens`` sets the preview size of the tool that reloads are observed with."""
    document: dict[str, Any] = {"upstreams": {"lib": {"url": upstream_url, "stateless": True}}}
    if tokens is not None:
        document["tools"] = {"lib_issues": {"preview_tokens": tokens, "max_tokens": 2_000}}
    return document


def _table() -> Section:
    return Section(
        "results delivered through a gateway, and read back by pages",
        ("result", "KB", "tokens", "delivered", "saved", "pages", "byte exact", "ms direct", "ms delivered"),
        note="issues, series and search are generated answers like those of web APIs, captured are real ones; big file and folder are "
        "read from disk, by an upstream of ours and by the protocol's reference servers; "
        "each compared with the upstream's direct answer; tokens counted at the client (o200k_base)",
    )


def _fill(root: Path, sizes: Sizes) -> None:
    (root / _FOLDER).mkdir(parents=True)
    (root / _FILE).write_text(token_corpus.text("logs", sizes.kilobytes * 1000), encoding="utf-8")
    (root / _PAGE).write_text(token_corpus.text("logs", _PAGE_BYTES, 1), encoding="utf-8")
    for name in captured.NAMES:
        (root / f"{name}.json").write_text(captured.answer(name), encoding="utf-8")
    for number in range(sizes.entries):
        (root / _FOLDER / f"measurement_{number * 7919 % 100_003:06d}_{number % 12}.parquet").touch()
