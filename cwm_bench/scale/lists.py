"""Lists, searches, filters and statuses of a large registry, through the services and through a gateway."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, event, text

from cwm.domain.access import AccessScope
from cwm.domain.principal import Principal
from cwm.domain.session import SessionQuery, SessionState
from cwm.domain.turn import TurnSource
from cwm.domain.window import WindowQuery, WindowSort
from cwm.settings import Database, Isolation, Settings
from cwm.settings import Engine as EngineSettings
from cwm.wiring.parts import Parts, build_parts
from cwm_bench.harness.agents import Agent
from cwm_bench.harness.figures import median
from cwm_bench.harness.goals import percentile
from cwm_bench.harness.servers import cpu_ms
from cwm_bench.scale.rows import ASKER, TENANT, WINDOWS_A_SESSION, made_at, name_of, session_id_of

WHO: Final = Principal(TENANT, ASKER, frozenset(AccessScope))
"""Sees everything in the tenant."""
MEMBER: Final = Principal(TENANT, ASKER)
"""The same without a scope: sees what is its own or its tenant's, three quarters of all."""

_NOWHERE: Final = "http://127.0.0.1:9"
_WARM: Final = 3

Ask = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of query. ``deep`` marks offsets far into a list, which take longer the farther they are."""

    name: str
    query: WindowQuery
    deep: bool = False


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """Milliseconds of one query; ``cpu`` is its median processor time, which holds on a busy machine too."""

    name: str
    p50: float
    p99: float
    cpu: float
    deep: bool = False


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Runs each query ``rounds`` times. ``pids`` are the processes whose processor time counts."""

    rounds: int
    pids: Sequence[int]

    async def __call__(self, name: str, ask: Ask, *, deep: bool = False) -> QueryTimes:
        ms, cpu = [], []
        for _ in range(_WARM + self.rounds):
            began, used = time.perf_counter(), self._used_ms()
            await ask()
            ms.append((time.perf_counter() - began) * 1000)
            cpu.append(self._used_ms() - used)
        return QueryTimes(
            name,
            median(ms[_WARM:]),
            percentile(ms[_WARM:], 99),
            median(cpu[_WARM:]),
            deep,
        )

    def _used_ms(self) -> float:
        return sum(map(cpu_ms, self.pids))


async def servers_of(parts: Parts) -> list[int]:
    """The processes of Postgres that serve gateways; none for SQLite."""
    working = text("SELECT pid FROM pg_stat_activity WHERE application_name = 'cwm'")

    def read(connection: Connection) -> list[int]:
        return [] if connection.dialect.name == "sqlite" else list(connection.execute(working).scalars())

    return await parts.base.database.read(read)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Parts]:
    """All parts of a gateway except its HTTP side, on the registry at ``url``, without an engine."""
    at = (
        {"db_path": Path(url.removeprefix("sqlite:///"))}
        if url.startswith("sqlite")
        else {"database_url": url}
    )
    settings = Settings(
        database=Database.model_validate(at),
        engine=EngineSettings(vllm_url=_NOWHERE, lmcache_url="none", coordinator_url="none"),
        isolation=Isolation(secret="a benchmark's", tenant=TENANT),  # noqa: S106 - guards nothing
    )
    parts = build_parts(settings)
    async with parts.close():
        yield parts


def cases(count: int) -> list[Case]:
    """The queries over ``count`` windows; pages half-way are reached by cursor and by offset."""
    half = count * 9 // 20
    orders = [
        Case(
            f"first page, {sort.value} {'desc' if down else 'asc'}",
            WindowQuery(sort_by=sort, descending=down),
        )
        for sort, down in product(WindowSort, (True, False))
    ]
    by_size = WindowQuery(sort_by=WindowSort.SIZE)
    day = made_at(count // 2, count)
    return [
        *orders,
        Case("first 100", WindowQuery(limit=100)),
        Case("offset 10,000", WindowQuery(offset=min(10_000, half))),
        Case("offset 10,000, by name", WindowQuery(sort_by=WindowSort.NAME, offset=min(10_000, half))),
        Case(f"offset {half:,}", WindowQuery(offset=half), deep=True),
        Case(f"offset {half:,}, by size", replace(by_size, offset=half), deep=True),
        Case("tag of 30 %", WindowQuery(tags=("coding",))),
        Case("tag of 30 %, by size", replace(by_size, tags=("coding",))),
        Case("tag of 30 %, by name", WindowQuery(tags=("coding",), sort_by=WindowSort.NAME, descending=False)),
        Case("tag of 1 %, by size", replace(by_size, tags=("draft",))),
        Case("tag of few", WindowQuery(tags=("topic-1500",))),
        Case("tag of few, by tokens", WindowQuery(tags=("topic-1500",), sort_by=WindowSort.TOKEN_COUNT)),
        Case("tag of none", WindowQuery(tags=("nothing",))),
        Case("two tags of many", WindowQuery(tags=("coding", "review"))),
        Case("two tags of many, by size", replace(by_size, tags=("coding", "review"))),
        Case("three tags", WindowQuery(tags=("billing", "research", "draft"))),
        Case("model of today", WindowQuery(model="gpt-oss-120b")),
        Case("model of two years ago", WindowQuery(model="llama-3.1-8b")),
        Case("model of two years ago, by name", WindowQuery(model="llama-3.1-8b", sort_by=WindowSort.NAME)),
        Case("model and tag", WindowQuery(model="qwen3-32b", tags=("review",))),
        Case("a day", WindowQuery(created_after=day, created_before=day + timedelta(days=1))),
        Case(
            "a day, by size", replace(by_size, created_after=day, created_before=day + timedelta(days=1))
        ),
        Case("a year", WindowQuery(created_after=day)),
        Case("a year, by size", replace(by_size, created_after=day)),
        Case("search: in an eighth", WindowQuery(search="refactor")),
        Case("search: in an eighth, by size", replace(by_size, search="refactor")),
        Case("search: one name", WindowQuery(search=name_of(count // 3))),
        Case("search: one ticket", WindowQuery(search=f"ticket {count // 50}")),
        Case("search: digits", WindowQuery(search=f"{count // 3:07d}"[:6])),
        Case("search: nothing", WindowQuery(search="zyzzyva")),
        Case("search: two letters", WindowQuery(search="au")),
        Case("search and tag", WindowQuery(search="ledger", tags=("research",))),
        Case("search, tag, model, year, by tokens", WindowQuery(
            search="audit", tags=("coding",), model="gpt-oss-120b", created_after=day, sort_by=WindowSort.TOKEN_COUNT
        )),
    ]  # fmt: skip


async def through_services(parts: Parts, count: int, rounds: int) -> list[QueryTimes]:
    browse = parts.services.browse
    await browse.windows(WHO, WindowQuery())
    time_of = Stopwatch(rounds, [os.getpid(), *await servers_of(parts)])
    timed = [
        await time_of(case.name, partial(browse.windows, WHO, case.query), deep=case.deep)
        for case in cases(count)
    ]
    timed += [
        await time_of(
            f"{case.name}, of one's own",
            partial(browse.windows, MEMBER, case.query),
            deep=case.query.offset > 0,
        )
        for case in cases(count)
        if not case.deep
    ]
    half = count * 9 // 20
    for name, query, skipped in (
        *((sort.value, WindowQuery(sort_by=sort), half) for sort in WindowSort),
        ("tag of 30 %, by name", WindowQuery(tags=("coding",), sort_by=WindowSort.NAME), half // 4),
    ):
        cursor = (await browse.windows(WHO, replace(query, limit=1, offset=skipped))).next_cursor
        timed.append(
            await time_of(f"half-way by cursor, {name}", partial(browse.windows, WHO, query, cursor))
        )
    timed += [
        await time_of(f"sessions, {what}", partial(browse.sessions, MEMBER, SessionQuery(states, 100)))
        for what, states in (
            ("all", None),
            *((state.value, frozenset({state})) for state in (SessionState.ACTIVE, SessionState.EXPIRED)),
        )
    ]
    timed.append(await time_of("window status", partial(browse.window, WHO, _frozen(count))))
    session = _talked_in(count)
    timed.append(await time_of("session status", partial(browse.session, WHO, session)))
    history, of = parts.services.history, TurnSource(session)
    timed.append(await time_of("turn log, 50 turns", partial(history.log, WHO, of)))
    timed.append(
        await time_of("turn log, from half-way", partial(history.log, WHO, of, before=WINDOWS_A_SESSION // 2))
    )
    timed.append(await time_of("turn show", partial(history.show, WHO, of)))
    timed.append(await time_of("turn show, with tokens", partial(history.show, WHO, of, tokens=True)))
    return timed


async def through_gateway(agent: Agent, count: int, rounds: int, pids: Sequence[int]) -> list[QueryTimes]:
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "window_list": ("window_list", {}),
        "window_list, tag of 30 %, by name": ("window_list", {"tags": ["coding"], "sort_by": "name"}),
        "window_list, search: one name": ("window_list", {"search": name_of(count // 3)}),
        "session_list": ("session_list", {}),
        "window_status": ("window_status", {"window_name": _frozen(count)}),
        "turn_log": ("turn_log", {"session_id": _talked_in(count)}),
        "turn_show": ("turn_show", {"session_id": _talked_in(count)}),
    }
    time_of = Stopwatch(rounds, pids)
    return [
        await time_of(f"over MCP: {name}", partial(agent.call, tool, arguments))
        for name, (tool, arguments) in calls.items()
    ]


async def plans(parts: Parts, count: int) -> list[tuple[str, str]]:
    """For every statement of every query: the query's name, and the database's plan."""
    plan_texts = []
    for case in cases(count):
        with _statements() as statements:
            await parts.services.browse.windows(WHO, case.query)
        for statement, parameters in statements:
            plan_texts.append(
                (case.name, await parts.base.database.read(partial(_plan, statement, parameters)))
            )
    return plan_texts


def _frozen(count: int) -> str:
    """A window of the querying tenant that has chunk references."""
    return name_of(count // 2000 * 1000 + 100)


def _talked_in(count: int) -> str:
    """A session of the querying tenant."""
    return session_id_of(count // 200 // 10 * 10 + 1)


def _plan(statement: str, parameters: Any, connection: Connection) -> str:
    sqlite = connection.dialect.name == "sqlite"
    explain = f"EXPLAIN QUERY PLAN {statement}" if sqlite else f"EXPLAIN (ANALYZE, BUFFERS) {statement}"
    rows = connection.exec_driver_sql(explain, parameters).all()
    return "\n".join(str(row[-1]) for row in rows)


@contextmanager
def _statements() -> Iterator[list[tuple[str, Any]]]:
    """The SELECT statements sent during the block, with their parameters."""
    statements: list[tuple[str, Any]] = []

    def hear(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.lstrip().startswith(("SELECT", "WITH")):
            statements.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", hear)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", hear)
