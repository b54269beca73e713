"""Callers who do not run the gateway learn from no face where its engine, its upstreams and its files are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from cwm.app import create_app
from cwm.cli.demo.gateway import RunningGateway
from cwm.domain.upstream import UpstreamSpec
from cwm.settings import Auth, Database, Engine, Isolation, Settings
from tests.transport.http.secured import http, made
from tests.transport.mcp.gateway import nobody_listens, serving
from tests.transport.mcp.wire import Wire

pytestmark = pytest.mark.slow

USER = ("windows:*", "sessions:write", "context:*", "tools:call")
MESSAGES = [{"role": "user", "content": "hey"}]
TURNS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hey"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/responses": {"input": "hey"},
    "/v1/embeddings": {"input": "hey"},
}
PATHS = (
    "/v1/models",
    "/readyz",
    "/console",
    "/console/conversations",
    "/console/windows",
    "/metrics",
    "/reconcile",
)
CALLS: dict[str, dict[str, Any]] = {
    "health_check": {},
    "session_create": {"model": "m"},
    "window_list": {},
    "session_list": {},
    "cache_stats": {},
    "engine_list": {},
    "get_metrics_data": {},
    "window_thaw": {"window_name": "w"},
    "window_freeze": {"session_id": "s", "window_name": "w"},
    "notes_anything": {},
}
METHODS = ("tools/list", "resources/list", "resources/templates/list", "prompts/list")
READS = ("cwm://windows", "cwm://sessions", "cwm://stats", "health://status", "file://notes//a")


@dataclass(frozen=True, slots=True)
class Planted:
    running: RunningGateway
    places: tuple[str, ...]


@pytest.fixture
async def planted(tmp_path: Path) -> AsyncIterator[Planted]:
    with ExitStack() as closed:
        engine, lmcache, coordinator, upstream = (closed.enter_context(nobody_listens()) for _ in range(4))
        program = "/opt/inner/tools/no-such-program"
        settings = Settings(
            auth=Auth(api_keys=True),
            database=Database(db_path=tmp_path / "cwm.db"),
            engine=Engine(vllm_url=engine, lmcache_url=lmcache, coordinator_url=coordinator),
            isolation=Isolation(secret="a test's secret", tenant="acme"),
            upstreams=(
                UpstreamSpec("notes", url=f"{upstream}/inner/mcp", stateless=True, connect_seconds=2),
                UpstreamSpec("files", command=(program,)),
            ),
        )
        app = create_app(settings)
        async with serving(app, app.state.end_streams) as served_at:
            running = RunningGateway(served_at, app.state.parts)
            async with http(running) as client:
                await client.get("/healthz")
            urls = (engine, lmcache, coordinator, upstream)
            yield Planted(running, (*(urlsplit(url).netloc for url in urls), program, str(tmp_path)))


@asynccontextmanager
async def of_user(planted: Planted) -> AsyncIterator[httpx2.AsyncClient]:
    _, key = await made(planted.running, *USER, name="user")
    async with http(planted.running, key) as client:
        yield client


async def test_no_face_shows_an_address_or_a_path(planted: Planted) -> None:
    told: dict[str, str] = {}
    async with of_user(planted) as client:
        for path, body in TURNS.items():
            for stream in (False, True):
                answer = await client.post(path, json={"model": "m", "stream": stream, **body})
                told[f"{path} {stream}"] = answer.text
        for path in PATHS:
            told[path] = (await client.get(path, headers={"accept": "text/html"})).text
        wire = Wire(client)
        for era in ("legacy", "modern"):
            for method in METHODS:
                told[f"{era} {method}"] = (await wire.ask_as(era, method, {})).text
            for name, arguments in CALLS.items():
                answer = await wire.ask_as(era, "tools/call", {"name": name, "arguments": arguments})
                told[f"{era} {name}"] = answer.text
            for uri in READS:
                told[f"{era} {uri}"] = (await wire.ask_as(era, "resources/read", {"uri": uri})).text

    shown = {where: place for where, text in told.items() for place in planted.places if place in text}
    assert shown == {}
    # What they learn is what to do, and of which part it is.
    assert "CWM-5001" in told["/v1/chat/completions False"]
    assert "vLLM cannot be reached" in told["/v1/chat/completions False"]
    assert "notes" in told["modern tools/list"]


async def test_who_runs_the_gateway_reads_where_it_looked(planted: Planted) -> None:
    _, key = await made(planted.running, "admin", name="operator")
    async with http(planted.running, key) as client:
        answer = await Wire(client).ask_as("modern", "tools/call", {"name": "health_check", "arguments": {}})
    text = answer.text
    assert (
        planted.places[0] in json.loads(text.partition("data: ")[2] or text)["result"]["content"][0]["text"]
    )
