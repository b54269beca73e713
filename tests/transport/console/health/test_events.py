"""What changes is told to whoever may see it, over a real socket, until the gateway or the time ends it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from starlette.types import ASGIApp

from cwm.app import assemble
from cwm.domain.principal import Principal
from cwm.services.health.live import MOST_LISTENERS
from cwm.settings import ABSENT, Database, Engine, Isolation, Retention, Settings
from cwm.transport.console.health.events import Events
from cwm.transport.http.request_keys import PRINCIPAL
from cwm.wiring.parts import Parts, build_parts
from tests.eventually import eventually
from tests.transport.console.reading import Console
from tests.transport.console.scenes import assistant, opened, user
from tests.transport.mcp.gateway import nobody_listens, serving

pytestmark = pytest.mark.slow

_BOUND_SECONDS = 20
ELSEWHERE = Principal("elsewhere", "local")


class Served:
    """A gateway on a socket. ``stop`` ends the streams as a drain does."""

    def __init__(self, url: str, app: Any, http: httpx2.AsyncClient) -> None:
        self.url, self.app, self.http = url, app, http
        self.parts: Parts = app.state.parts

    @asynccontextmanager
    async def listening(self, **query: str) -> AsyncIterator[tuple[httpx2.Response, AsyncIterator[str]]]:
        async with self.http.stream("GET", f"/console/events?{urlencode(query)}") as answer:
            yield answer, answer.aiter_lines()


@pytest.fixture
async def path(sqlite_template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sqlite_template, tmp_path / "cwm.db"))


@pytest.fixture
async def served(path: Path) -> AsyncIterator[Served]:
    async with a_gateway(path) as gateway:
        yield gateway


@asynccontextmanager
async def a_gateway(path: Path) -> AsyncIterator[Served]:
    with nobody_listens() as away:
        settings = Settings(
            database=Database(db_path=path),
            engine=Engine(vllm_url=away, lmcache_url=ABSENT, coordinator_url=ABSENT),
            isolation=Isolation(secret="a test's secret"),
            retention=Retention(reconcile_seconds=86_400, patrol_windows=0),
        )
        app = assemble(settings, build_parts(settings))
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(serving(app, app.state.end_streams))
            http = httpx2.AsyncClient(base_url=url, trust_env=False, timeout=_BOUND_SECONDS)
            yield Served(url, app, await stack.enter_async_context(http))


async def next_event(lines: AsyncIterator[str]) -> dict[str, Any]:
    """The data of the next event, which is a change."""
    async with asyncio.timeout(_BOUND_SECONDS):
        async for line in lines:
            if line.startswith("event: "):
                assert line == "event: change"
            if line.startswith("data: "):
                return dict(json.loads(line.removeprefix("data: ")))
    raise AssertionError("The stream ended.")


async def seen_by(gateway: Served) -> None:
    """Somebody listens there, and what is so now is no news to them."""
    await eventually(lambda: len(gateway.parts.services.live) == 1)
    await gateway.parts.services.live.look()


async def a_turn(parts: Parts, session_id: str, tenant: str = "default") -> None:
    scene = await opened(parts.base.registry, session_id, tenant, age_minutes=60)
    scene.now = datetime.now(UTC) - timedelta(seconds=75)
    await scene.turn(user("Are you there?"), assistant("A secret answer."))


async def test_pages_say_what_they_show_but_not_those_of_others(console: Console) -> None:
    """To read what others own is recorded: no page does that by itself."""
    registry = console.parts.base.registry
    mine = await (await opened(registry, "mine")).turn(user("hey"), assistant("ho"))
    theirs = await (await opened(registry, "theirs", owner="somebody-else")).turn(user("hey"))
    news = {
        path: (await console.page(path)).one("main").attributes.get("data-live")
        for path in (
            "",
            "/conversations",
            "/conversations/mine",
            "/conversations/theirs",
            f"/turns/{mine.id}",
            f"/turns/{theirs.id}",
            "/windows",
            "/engines",
            "/audit",
        )
    }
    assert news == {
        "": "conversations windows engines",
        "/conversations": "conversations",
        "/conversations/mine": "conversations:mine windows",
        "/conversations/theirs": None,
        f"/turns/{mine.id}": "conversations:mine",
        f"/turns/{theirs.id}": None,
        "/windows": "windows",
        "/engines": "engines",
        "/audit": None,
    }


async def test_a_turn_that_ends_is_told_at_once_by_its_conversation_only(served: Served) -> None:
    async with served.listening() as (answer, lines):
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-accel-buffering"] == "no"
        await seen_by(served)
        await a_turn(served.parts, "s1")
        assert await next_event(lines) == {"kind": "conversations", "ids": ["s1"]}


async def test_another_gateway_of_the_same_registry_tells_it_too(served: Served, path: Path) -> None:
    async with a_gateway(path) as other, other.listening() as (_, lines):
        await seen_by(other)
        await a_turn(served.parts, "s1")
        assert await next_event(lines) == {"kind": "conversations", "ids": ["s1"]}


async def test_what_changed_since_the_page_was_made_is_told(served: Served) -> None:
    await a_turn(served.parts, "s1")
    async with served.listening(since=datetime.now(UTC).isoformat(timespec="seconds")) as (_, lines):
        assert await next_event(lines) == {"kind": "conversations", "ids": ["s1"]}


async def test_nothing_is_told_of_another_tenant(served: Served) -> None:
    async with served.listening() as (_, lines):
        await seen_by(served)
        await a_turn(served.parts, "theirs", "elsewhere")
        await served.parts.services.live.look()
        await a_turn(served.parts, "ours")
        assert await next_event(lines) == {"kind": "conversations", "ids": ["ours"]}


async def test_streams_end_when_the_gateway_drains(served: Served) -> None:
    async with served.listening() as (_, lines):
        await eventually(lambda: len(served.parts.services.live) == 1)
        served.app.state.end_streams()
        async with asyncio.timeout(_BOUND_SECONDS):
            assert [line async for line in lines if line.startswith("data")] == []


async def test_a_browser_that_leaves_is_forgotten(served: Served) -> None:
    async with served.listening():
        await eventually(lambda: len(served.parts.services.live) == 1)
    await eventually(lambda: len(served.parts.services.live) == 0)


async def test_a_ninth_stream_is_refused_and_a_head_is_none(served: Served) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(MOST_LISTENERS):
            answer, _lines = await stack.enter_async_context(served.listening())
            assert answer.status_code == 200
        refused = await served.http.get("/console/events")
        assert (refused.status_code, refused.json()["code"]) == (429, "CWM-7002")
        assert refused.headers["retry-after"] == "15"
    await eventually(lambda: len(served.parts.services.live) == 0)
    assert (await served.http.head("/console/events")).status_code == 200
    assert (await served.http.post("/console/events")).is_error


async def test_a_stream_ends_after_its_time_and_shows_before_that_that_it_lives(console: Console) -> None:
    sent = await heard(
        Events(
            console.parts.services.live,
            console.parts.base.limits,
            console.parts.base.access.standing,
            heartbeat_seconds=0.01,
            lasts_seconds=0.3,
        ),
        ELSEWHERE,
    )
    assert sent[0]["status"] == 200
    assert sent[1]["body"] == b"retry: 5000\n\n"
    assert sent[2]["body"] == b": \n\n"
    assert sent[-1] == {"type": "http.response.body", "body": b""}
    assert len(console.parts.services.live) == 0


async def heard(app: ASGIApp, principal: Principal) -> list[Any]:
    """All that is sent to somebody who stays."""
    sent: list[Any] = []
    stays = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await stays.wait()

    scope: Any = {
        "type": "http",
        "method": "GET",
        "path": "/console/events",
        "query_string": b"",
        "headers": [],
        PRINCIPAL: principal,
    }
    async with asyncio.timeout(_BOUND_SECONDS):
        await app(scope, receive, send)
    return sent
