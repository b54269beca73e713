"""The trace goes on: to upstream servers of both transports and eras, to vLLM and to LMCache."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cwm.domain.upstream import UpstreamSpec
from cwm.settings import Engine
from tests.traces.gateway import Caller, caller, http, traced_gateway
from tests.traces.sink import Sink
from tests.traces.upstream import tracing_server
from tests.transport.mcp.gateway import sdk_agent, serving
from tests.transport.mcp.upstream_hosts import HandshakeOnly, hosted

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("upstream.py")
WAYS = ["stdio", "http", "http of the handshake era"]


@pytest.fixture(params=WAYS)
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[UpstreamSpec]:
    async with upstream_of(request.param) as spec:
        yield spec


@asynccontextmanager
async def upstream_of(way: str) -> AsyncIterator[UpstreamSpec]:
    if way == "stdio":
        yield UpstreamSpec("up", command=(sys.executable, str(PROGRAM)), connect_seconds=60)
        return
    app = tracing_server().http_app(path="/mcp", stateless_http=way == "http")
    async with serving(app if way == "http" else HandshakeOnly(app)) as url:
        yield UpstreamSpec("up", url=f"{url}/mcp")


async def test_an_upstream_is_told_the_span_that_asks_it(
    tmp_path: Path, collector: Sink, upstream: UpstreamSpec, era: str
) -> None:
    whose = caller()
    async with (
        traced_gateway(tmp_path, collector, upstreams=[upstream]) as url,
        sdk_agent(url, era) as agent,
    ):
        with whose.calling():
            seen = (await agent.call("up_came_with", {"note": "never to be seen"})).value
    call = collector.one("tools/call up_came_with")
    asked = collector.one("tools/call came_with")
    assert (call.trace, call.parent) == (whose.trace, whose.span)
    assert (asked.kind, asked.parent, asked.failed) == ("client", call.id, False)
    assert asked.attributes["service.peer.name"] == "up"
    assert asked.attributes["network.transport"] == ("pipe" if upstream.command else "tcp")
    theirs = f"00-{whose.trace}-{asked.id}-01"
    assert seen == {"meta": theirs, "header": None if upstream.command else theirs}
    assert b"never to be seen" not in b"".join(collector.raw)


async def test_a_tool_of_an_upstream_that_fails_is_a_tool_error(
    tmp_path: Path, collector: Sink, upstream: UpstreamSpec
) -> None:
    async with (
        traced_gateway(tmp_path, collector, upstreams=[upstream]) as url,
        sdk_agent(url, "2026-07-28") as agent,
    ):
        assert (await agent.call("up_fail", {"note": "never to be seen"})).is_error
    for name in ("tools/call up_fail", "tools/call fail"):
        span = collector.one(name)
        assert (span.failed, span.error) == (True, "tool_error")
    assert b"never to be seen" not in b"".join(collector.raw)


async def test_an_upstream_that_is_gone_fails_by_code(tmp_path: Path, collector: Sink) -> None:
    async with (
        hosted(legacy=False) as host,
        traced_gateway(tmp_path, collector, upstreams=[host.spec("up")]) as url,
        sdk_agent(url, "2026-07-28") as agent,
    ):
        assert not (await agent.call("up_echo", {"message": "here"})).is_error
        await host.stop()
        assert (await agent.call("up_echo", {"message": "gone"})).error["code"] == "CWM-5003"
    asked = [span for span in collector.spans if span.name == "tools/call echo"]
    assert sorted([span.error or "" for span in asked]) == ["", "CWM-5003"]


@pytest.mark.parametrize("kept", [True, False])
async def test_who_is_not_traced_here_passes_the_callers_trace_on(
    tmp_path: Path, collector: Sink, kept: bool
) -> None:
    """Without a collector, and where the caller's trace is not kept."""
    whose = caller(sampled=kept)
    async with (
        upstream_of("http") as upstream,
        traced_gateway(tmp_path, None if kept else collector, upstreams=[upstream]) as url,
        sdk_agent(url, "2026-07-28") as agent,
    ):
        with whose.calling():
            seen = (await agent.call("up_came_with")).value
    if kept:
        assert seen["meta"] == whose.parent
    else:
        version, trace, _, flags = seen["meta"].split("-")
        assert (version, trace, flags) == ("00", whose.trace, "00")
    assert collector.of(whose.trace) == []


@dataclass(slots=True)
class Broken:
    """An engine that is out of order: it writes down what it is asked, and says 500."""

    url: str = ""
    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    def parents(self, path: str) -> list[str]:
        return [parent for asked, parents in self.asked if asked == path for parent in parents]


@contextmanager
def broken_engine() -> Iterator[Broken]:
    broken = Broken()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            broken.asked.append((self.path, self.headers.get_all("traceparent", [])))
            self.send_response(500)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        broken.url = f"http://127.0.0.1:{server.server_port}"
        running = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        running.start()
        try:
            yield broken
        finally:
            server.shutdown()
            running.join()


def child_of(whose: Caller, collector: Sink, name: str) -> list[str]:
    return [
        f"00-{s.trace}-{s.id}-01" for s in collector.of(whose.trace) if s.name == name and s.kind == "client"
    ]


async def test_vllm_is_told_the_span_that_asks_it_and_not_the_clients(
    tmp_path: Path, collector: Sink
) -> None:
    whose = caller()
    with broken_engine() as vllm:
        engine = Engine(vllm_url=vllm.url, lmcache_url="none", coordinator_url="none")
        async with traced_gateway(tmp_path, collector, engine=engine) as url, http(url) as client:
            answer = await client.get("/v1/models", headers={"traceparent": whose.parent})
            assert answer.status_code == 500
    asked = child_of(whose, collector, "GET /v1/models")
    assert len(asked) == 1
    assert asked[0] in vllm.parents("/v1/models")
    assert whose.parent not in vllm.parents("/v1/models")
    (span,) = [s for s in collector.of(whose.trace) if s.kind == "client"]
    assert (span.failed, span.error) == (True, "500")
    # What nobody asked for is not traced.
    assert all(len(parents) <= 1 for _, parents in vllm.asked)


async def test_lmcache_is_told_the_span_that_asks_it(tmp_path: Path, collector: Sink, era: str) -> None:
    whose = caller()
    with broken_engine() as lmcache:
        engine = Engine(vllm_url=lmcache.url, lmcache_url=lmcache.url, coordinator_url=lmcache.url)
        async with (
            traced_gateway(tmp_path, collector, engine=engine) as url,
            sdk_agent(url, era) as agent,
        ):
            with whose.calling():
                await agent.call("health_check")
    told = [s for s in collector.of(whose.trace) if s.attributes.get("service.peer.name") == "lmcache"]
    assert told
    for span in told:
        assert (span.kind, span.error) == ("client", "CWM-5002")
        assert f"00-{span.trace}-{span.id}-01" in lmcache.parents(span.attributes["url.path"])
