"""A whole gateway on a socket, and what is to be seen on its pages."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
from starlette.routing import Route

from cwm.app import create_app
from cwm.domain.turn_sums import KEPT, TurnSum, hour_of
from cwm.domain.upstream_tools import version_of
from cwm.ports.registry import Registry
from cwm.settings import ABSENT, Database, Engine, Http, Isolation, Retention, Settings
from cwm.settings.engines import EngineEntry
from tests.adapters.upstream.bad_server import bad_server
from tests.transport.console import test_audit, test_kept, test_upstreams
from tests.transport.console.reading import Console
from tests.transport.console.scenes import a_small_talk, a_working_day
from tests.transport.mcp.gateway import nobody_listens, serving

_YESTERDAY_MINUTES: Final = 26 * 60
_NO_PAGES: Final = re.compile(r"/static/|/export$|/events$|\{rest")


@dataclass(frozen=True)
class House:
    """``day``: the turns of a working day by name. ``names`` fill the holes of addresses."""

    url: str
    console: Console
    routes: list[Route]
    day: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def pages(self) -> list[str]:
        """The address of every page, with one thing of each kind; and some that ask for more."""
        paths = [each.path for each in self.routes if "GET" in (each.methods or ())]
        pages = [each for each in paths if each.startswith("/console") and not _NO_PAGES.search(each)]
        filled = [
            re.sub(r"\{(\w+)\}", lambda hole: self.names[hole[1]], each)
            for each in pages
            if set(re.findall(r"\{(\w+)\}", each)) <= self.names.keys()
        ]
        fifth = self.day["fifth"].id
        more = [
            "conversations?q=clock",
            "conversations?state=active",
            "conversations/yesterday-s-talk",
            f"turns/{fifth}",
            f"turns/{fifth}/untag",
            "windows/for-today",
            "windows/for-today/extend",
            f"compare?left=turn:{fifth}&right=session:fix-flaky-login-test",
            "windows?q=login",
            "windows?q=nothing-is-called-this",
            "audit?verify=1",
        ]
        return sorted({*filled, *(f"/console/{each}" for each in more)})


@asynccontextmanager
async def a_house(
    folder: Path,
    template: Path,
    *,
    database: Path | None = None,
    engines: Mapping[str, str] | None = None,
    **http: Any,
) -> AsyncIterator[House]:
    """``database``: that of another gateway, instead of a new one. ``engines``: their addresses by name, instead of two that are away."""
    path = database or Path(shutil.copy(template, folder / "cwm.db"))
    with nobody_listens() as away:
        settings = Settings(
            http=Http(**http),
            database=Database(db_path=path),
            engine=Engine(lmcache_url=ABSENT, coordinator_url=ABSENT),
            engines={
                name: EngineEntry(vllm_url=url, lmcache_url=ABSENT, coordinator_url=ABSENT)
                for name, url in (engines or dict.fromkeys(("north", "south"), away)).items()
            },
            isolation=Isolation(secret="a test's secret"),
            retention=Retention(reconcile_seconds=86_400, patrol_windows=0),
        )
        app = create_app(settings)
        async with (
            serving(app, app.state.end_streams) as url,
            httpx2.AsyncClient(base_url=url, trust_env=False) as client,
        ):
            routes = [each for each in app.router.routes if isinstance(each, Route)]
            yield House(url, Console(client, app.state.parts), routes)


async def _counted(console: Console) -> None:
    """What turns cost in the last seven days, by the hour."""
    now = hour_of(datetime.now(UTC))
    sums = {
        ("default", now - timedelta(hours=hour)): TurnSum(
            turns=3 + hour % 7,
            prompt=40_000 + 9_000 * (hour % 5),
            cached=31_000 + 7_500 * (hour % 5),
            cold=4_000,
            cold_ms=2_600,
        )
        for hour in range(7 * 24)
        if 7 <= (now - timedelta(hours=hour)).hour <= 19
    }
    records = console.parts.engine_side.turn_sums.records
    await records.add_turn_sums_of_every_tenant(sums, now - KEPT)


@asynccontextmanager
async def furnished(house: House) -> AsyncIterator[None]:
    """A working day, yesterday's talk, shared keys, stored results, an upstream, and an audit log."""
    console = house.console
    house.day.update(await two_days(console.parts.base.registry))
    await _counted(console)
    house.names.update(
        session_id="fix-flaky-login-test",
        turn=house.day["sixth"].id,
        window_name="login-fixed",
        scope="tenant",
        engine="north",
        upstream="files",
    )
    await console.parts.services.clone(test_kept.LOCAL, "login-fixed", "for-today", ttl_seconds=86_400)
    await test_audit.a_day(console)
    await test_kept.written(console)
    await test_kept.stored(console, test_kept.LOCAL, "search", 3)
    before = {"read": "Does read.", "write": "Does write."}
    async with changed_upstream(console, before, {"read": "Reads a file.", "write": "Writes a file."}):
        yield


async def two_days(registry: Registry, **fields: Any) -> dict[str, Any]:
    """Yesterday's talk and a working day, the day's turns by name. ``fields``: those of both conversations."""
    await a_small_talk(
        registry,
        "yesterday-s-talk",
        ("How do we rotate the signing keys?", "With `cwm rotate`, once a quarter."),
        ("Who is told?", "Whoever reads the audit log."),
        age_minutes=_YESTERDAY_MINUTES,
        **fields,
    )
    return await a_working_day(registry, **fields)


@asynccontextmanager
async def changed_upstream(
    console: Console, before: Mapping[str, str], now: Mapping[str, str]
) -> AsyncIterator[None]:
    """An upstream ``files``, whose tools had other descriptions, by name, when they were first seen."""
    desk = console.parts.agent_side.tool_desk
    first_seen = [version_of(test_upstreams.a_tool(name, words)) for name, words in before.items()]
    await desk.tools.note("files", first_seen, desk.clock.now())
    async with bad_server() as server:
        test_upstreams.offering(server, *(test_upstreams.a_tool(name, words) for name, words in now.items()))
        await test_upstreams.configured(console, server.spec(name="files"))
        yield
