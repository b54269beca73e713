"""Requests that are too large, too deep or too slow, at the socket of a whole gateway."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cwm.app import create_app
from cwm.settings import ABSENT, Database, Engine, Http, Isolation, Limits, Settings
from cwm.transport.http.server import GatewayServer
from tests.transport.mcp.wire import initialize

pytestmark = pytest.mark.slow

MAX_BODY, MAX_HEAD = 64 * 1024, 8 * 1024
PATHS = ["/mcp", "/v1/chat/completions", "/v1/models", "/reconcile", "/healthz"]


@pytest.fixture(scope="module")
async def port(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    settings = Settings(
        http=Http(port=0, max_body_bytes=MAX_BODY, drain_seconds=1),
        database=Database(db_path=folder / "cwm.db"),
        engine=Engine(vllm_url="http://127.0.0.1:9", lmcache_url=ABSENT, coordinator_url=ABSENT),
        isolation=Isolation(secret="a test's secret"),
        limits=Limits(max_header_bytes=MAX_HEAD, header_timeout_seconds=0.2, body_timeout_seconds=0.2),
    )
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = GatewayServer(settings, create_app(settings), ready.set_result)
    serving = asyncio.create_task(server.serve())
    yield int((await ready).rpartition(":")[2])
    server.should_exit = True
    await serving


async def said(port: int, *pieces: bytes) -> bytes:
    """Everything the gateway says to these bytes until it closes the connection, which it has to do itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    async with asyncio.timeout(30):
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            while chunk := await reader.read(65_536):
                answer += chunk
        except ConnectionError:
            pass
    writer.close()
    return answer


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    return "\r\n".join([*lines, "accept: application/json, text/event-stream", *headers, "", ""]).encode()


@pytest.mark.parametrize("path", PATHS)
async def test_a_head_that_never_ends_is_given_up(port: int, path: str) -> None:
    answer = await said(port, head(path)[:-2])
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"connection: close" in answer


async def test_half_a_request_line_is_given_up_too(port: int) -> None:
    assert (await said(port, b"GET /heal")).startswith(b"HTTP/1.1 408 ")


async def test_a_second_request_on_a_connection_has_no_longer(port: int) -> None:
    answer = await said(port, head("/healthz", method="GET"), head("/healthz", method="GET")[:-2])
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer


@pytest.mark.parametrize("path", ["/mcp", "/v1/chat/completions", "/v1/completions", "/reconcile"])
@pytest.mark.parametrize("how", ["content-length: 1000", "transfer-encoding: chunked"])
async def test_a_body_that_never_ends_is_given_up(port: int, path: str, how: str) -> None:
    begun = b"" if how.startswith("content") else b"1\r\n"
    assert (await said(port, head(path, how), begun + b"{")).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_sends_a_byte_now_and_then_has_no_longer(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nx: ")
    async with asyncio.timeout(30):
        answered = asyncio.create_task(reader.read(100))
        while not answered.done():
            writer.write(b"y")
            await asyncio.wait([answered], timeout=0.02)
        assert (await answered).startswith(b"HTTP/1.1 408 ")
    writer.close()


@pytest.mark.parametrize("path", PATHS)
async def test_a_header_of_ten_megabytes_is_refused_before_it_is_read(port: int, path: str) -> None:
    answer = await said(port, head(path)[:-2], b"x-much: ", *[b"y" * 100_000] * 100)
    assert answer[:12] in {b"HTTP/1.1 431", b""}


async def test_a_head_over_the_limit_in_one_piece_is_refused(port: int) -> None:
    many = [f"x-{number}: {'y' * 100}" for number in range(MAX_HEAD // 100)]
    answer = await said(port, head("/healthz", *many, method="GET"))
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    answer = await said(port, head("/" + "y" * MAX_HEAD, method="GET"))
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("path", ["/mcp", "/v1/chat/completions", "/v1/completions", "/reconcile"])
async def test_a_chunked_body_over_the_limit_is_refused_on_every_face(port: int, path: str) -> None:
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    answer = await said(port, head(path, "transfer-encoding: chunked"), *[chunk] * 8)
    # A client of MCP that has not initialized may send less still.
    assert answer[:12] == b"HTTP/1.1 413"


@pytest.mark.parametrize("path", ["/mcp", "/v1/chat/completions", "/v1/completions", "/reconcile"])
async def test_a_body_that_is_declared_over_the_limit_is_not_waited_for(port: int, path: str) -> None:
    assert (await said(port, head(path, "content-length: 10000000")))[:12] == b"HTTP/1.1 413"


@pytest.mark.parametrize("path", ["/mcp", "/v1/chat/completions", "/v1/completions", "/reconcile"])
@pytest.mark.parametrize("opened", [b"[", b'{"a":'])
@pytest.mark.parametrize("modern", [False, True])
async def test_json_nested_too_deep_to_read_is_the_callers_mistake(
    port: int, path: str, opened: bytes, *, modern: bool
) -> None:
    body = opened * (MAX_BODY // len(opened) - 10)
    headers = ["connection: close", f"content-length: {len(body)}"]
    if modern:
        headers += ["mcp-protocol-version: 2026-07-28", "mcp-method: tools/list"]
    answer = await said(port, head(path, *headers), body)
    assert answer[:12] == b"HTTP/1.1 400"


@pytest.mark.parametrize("opened", [b"[", b'{"a":'])
async def test_an_mcp_session_survives_json_that_is_nested_too_deep(port: int, opened: bytes) -> None:
    begun = json.dumps(initialize()).encode()
    answer = await said(port, head("/mcp", "connection: close", f"content-length: {len(begun)}"), begun)
    session = re.search(rb"mcp-session-id: (\w+)", answer)
    assert session is not None
    headers = ["connection: close", f"mcp-session-id: {session[1].decode()}"]
    body = opened * (MAX_BODY // len(opened) - 10)
    answer = await said(port, head("/mcp", *headers, f"content-length: {len(body)}"), body)
    assert answer[:12] == b"HTTP/1.1 400"
    listed = b'{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}'
    answer = await said(port, head("/mcp", *headers, f"content-length: {len(listed)}"), listed)
    assert answer[:12] == b"HTTP/1.1 200"


async def test_a_connection_that_says_nothing_bothers_nobody(port: int) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    assert (await said(port, head("/healthz", "connection: close", method="GET"))).startswith(b"HTTP/1.1 200")
    for _, writer in silent:
        writer.close()
