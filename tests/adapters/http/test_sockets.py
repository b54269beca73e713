"""Connections of our own under httpx: what they send, and what becomes of peers that are slow, rude or gone."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpcore2
import httpx2
import pytest
import uvloop

from cwm.adapters.http.sockets import AsyncioBackend, on_asyncio
from tests.certificates import certified

_Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

# Refused by the resolver itself, which asks nobody.
NO_NAME: Final = "no name"
_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
_ROUNDS_OF_AN_ACCEPT: Final = 5


@asynccontextmanager
async def peer(serve: _Peer, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The address of a server that does with each connection what ``serve`` says, and has closed all at the end."""
    serving: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(served, "127.0.0.1", 0, ssl=context)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        server.close()
        # A connection that was accepted just before reaches ``served`` a few rounds of the loop later.
        for _ in range(_ROUNDS_OF_AN_ACCEPT):
            await asyncio.sleep(0)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def client(
    verify: ssl.SSLContext | bool = False, timeout_seconds: float = 10
) -> AsyncIterator[httpx2.AsyncClient]:
    transport = on_asyncio(httpx2.AsyncHTTPTransport(verify=verify, trust_env=False))
    async with httpx2.AsyncClient(transport=transport, trust_env=False, timeout=timeout_seconds) as http:
        yield http


async def _request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of a request with a Content-Length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return head, await reader.readexactly(length)


async def test_head_and_body_leave_in_one_piece() -> None:
    pieces: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            pieces.append(piece)
            writer.write(_OK)

    async with peer(serve) as address, client() as http:
        for _ in range(3):
            assert (await http.post(f"http://{address}/", json={"a": 1})).text == "ok"
    assert len(pieces) == 3
    assert all(piece.startswith(b"POST / HTTP/1.1\r\n") and piece.endswith(b'{"a":1}') for piece in pieces)


async def test_a_request_without_a_body_is_not_held_back() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_OK)
        await writer.drain()

    async with peer(serve) as address, client() as http:
        assert (await http.get(f"http://{address}/")).text == "ok"


async def test_a_body_of_megabytes_arrives_whole_at_a_slow_reader() -> None:
    body = bytes(range(256)) * 32_768

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, received = await _request(reader)
        writer.write(_OK if received == body else b"HTTP/1.1 400 other\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()

    async with peer(serve) as address, client() as http:
        assert (await http.post(f"http://{address}/", content=body)).status_code == 200


async def test_a_body_of_unknown_length_is_sent_as_it_is_made() -> None:
    first = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"x" * 70_000)
        first.set()
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(_OK)
        await writer.drain()

    async def made() -> AsyncIterator[bytes]:
        yield b"x" * 70_000
        async with asyncio.timeout(10):
            await first.wait()
        yield b"y"

    async with peer(serve) as address, client() as http:
        assert (await http.post(f"http://{address}/", content=made())).text == "ok"


async def test_an_answer_of_megabytes_arrives_whole_at_a_slow_reader() -> None:
    body = bytes(range(256)) * 32_768

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    received = b""
    async with peer(serve) as address, client() as http, http.stream("GET", f"http://{address}/") as answer:
        async for part in answer.aiter_raw():
            received += part
            await asyncio.sleep(0)
    assert received == body


async def test_why_a_peer_hung_up_early_is_still_read() -> None:
    """It answers before it has read the body, and closes: writing fails, and the answer is there."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.write_eof()
        while await reader.read(65_536):
            pass

    async def made() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"x" * 70_000

    async with peer(serve) as address, client() as http:
        assert (await http.post(f"http://{address}/", content=made())).status_code == 413


async def test_a_peer_that_is_silent_is_a_read_timeout() -> None:
    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            pass

    async with peer(serve) as address, client(timeout_seconds=0.2) as http:
        with pytest.raises(httpx2.ReadTimeout):
            await http.get(f"http://{address}/")


async def test_a_peer_that_stops_reading_is_a_write_timeout() -> None:
    stopped = asyncio.Event()

    async def serve(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await stopped.wait()

    async with peer(serve) as address, client(timeout_seconds=0.2) as http:
        with pytest.raises(httpx2.WriteTimeout):
            await http.post(f"http://{address}/", content=b"x" * 32_000_000)
        stopped.set()


async def test_a_peer_that_goes_in_the_middle_of_an_answer_is_an_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await writer.drain()

    async with peer(serve) as address, client() as http:
        with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)):
            await http.get(f"http://{address}/")


async def test_nobody_there_is_a_connect_error() -> None:
    async def serve(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """Never called."""

    async with peer(serve) as address:
        pass
    async with client() as http:
        with pytest.raises(httpx2.ConnectError):
            await http.get(f"http://{address}/")


async def test_a_connection_that_its_peer_closed_while_idle_is_not_used_again() -> None:
    connections = 0
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_OK)
        await writer.drain()
        if connections == 1:
            writer.close()
            await writer.wait_closed()
            closed.set()

    async with peer(serve) as address, client() as http:
        await http.get(f"http://{address}/")
        async with asyncio.timeout(10):
            await closed.wait()
        assert (await http.get(f"http://{address}/")).text == "ok"
    assert connections == 2


async def test_requests_go_through_tls_to_whom_the_certificate_names(tmp_path: Path) -> None:
    served, trusted = certified(tmp_path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(_OK)
        await writer.drain()

    async with peer(serve, served) as address:
        port = address.rpartition(":")[2]
        async with client(trusted) as http:
            assert (await http.post(f"https://localhost:{port}/", json={})).text == "ok"
            with pytest.raises(httpx2.ConnectError, match=r"(?i)certificate"):
                await http.post(f"https://127.0.0.1:{port}/", json={})
        async with client(ssl.create_default_context()) as http:
            with pytest.raises(httpx2.ConnectError, match=r"(?i)certificate"):
                await http.post(f"https://localhost:{port}/", json={})


def test_a_name_that_is_not_found_after_the_caller_has_given_up_leaves_no_error_unread() -> None:
    unread: list[dict[str, Any]] = []

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unread.append(context))
        with pytest.raises(httpcore2.ConnectTimeout):
            await AsyncioBackend().connect_tcp(NO_NAME, 1, timeout=0)
        for _ in range(2):  # the first question is answered before the last
            with pytest.raises(socket.gaierror):
                await loop.getaddrinfo(NO_NAME, 1)
        gc.collect()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(connect())

    assert unread == []


async def test_a_name_with_several_addresses_is_connected_to_the_one_that_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def listens(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with peer(listens) as address:
        port = int(address.rpartition(":")[2])
        addresses = [("127.0.0.2", port), ("127.0.0.1", port)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        stream = await AsyncioBackend().connect_tcp("several.test", port, timeout=5)
        assert stream.get_extra_info("server_addr") == addresses[1]
        await stream.aclose()
