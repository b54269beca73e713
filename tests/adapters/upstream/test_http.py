"""Upstreams over streamable HTTP that answer badly, or not at all."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import socket
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse

from cwm.adapters.http.bounded import read_bounded
from cwm.adapters.upstream.connector import SdkConnector
from cwm.adapters.upstream.session import SdkSession
from cwm.domain.upstream import Bounds, OfferKind
from cwm.ports.upstream import (
    Heard,
    Listing,
    UpstreamAwayError,
    UpstreamDeniedError,
    UpstreamExpiredError,
    UpstreamLostError,
    UpstreamOversizeError,
    UpstreamRefusedError,
    UpstreamRejectedError,
    UpstreamSlowError,
)
from tests.adapters.upstream.bad_server import BadServer, bad_server, error, replying, result, text
from tests.eventually import eventually

pytestmark = pytest.mark.slow

SECRET = "Bearer s3cr3t-of-the-operator"


@asynccontextmanager
async def opened(server: BadServer, heard: Heard | None = None, **fields: Any) -> AsyncIterator[SdkSession]:
    connector = SdkConnector()
    try:
        session = await connector.open(server.spec(**fields), heard=heard)
        try:
            yield session
        finally:
            await session.close(end=True)
    finally:
        await connector.aclose()


async def call(session: SdkSession, seconds: float = 30) -> str:
    answer = await session.request("tools/call", {"name": "do", "arguments": {}}, timeout_seconds=seconds)
    return str(answer["content"][0]["text"])


def connections_to(url: str) -> int:
    """This process's open ones, as the kernel counts them."""
    port = f"{int(url.rpartition(':')[2].partition('/')[0]):04X}"
    mine = {
        link.readlink().name.removeprefix("socket:[").removesuffix("]")
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and link.readlink().name.startswith("socket:")
    }
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port}") and row[3] == "01" and row[9] in mine for row in rows)


def event(message: dict[str, Any]) -> str:
    return f"event: message\ndata: {json.dumps(message)}\n\n"


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (PlainTextResponse("no", 500), UpstreamLostError),
        (PlainTextResponse("bad gateway", 502), UpstreamLostError),
        (PlainTextResponse("who?", 401), UpstreamDeniedError),
        (PlainTextResponse("no!", 403), UpstreamDeniedError),
        (JSONResponse(error(None, "Session not found"), 404), UpstreamExpiredError),
        (JSONResponse(error(None, "Bad Request: No valid session ID provided"), 400), UpstreamExpiredError),
        (JSONResponse(error(None, "The session has expired"), 400), UpstreamExpiredError),
        (JSONResponse(error(None, "no such obsession"), 400), UpstreamRefusedError),
        (Response(status_code=202), UpstreamRefusedError),
        (PlainTextResponse("hello"), UpstreamRefusedError),
        (Response("{not json", media_type="application/json"), UpstreamRefusedError),
        (Response("data: {not json\n\n", media_type="text/event-stream"), UpstreamRefusedError),
        (Response(": nothing\n\n", media_type="text/event-stream"), UpstreamLostError),
        (JSONResponse([1, 2]), UpstreamRefusedError),
    ],
)
async def test_a_bad_answer_fails_its_request_and_no_other(
    reply: Response, failure: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async with bad_server() as server, opened(server) as session:
        server.on["tools/list"] = server.holding
        held = asyncio.create_task(session.definitions(OfferKind.TOOLS))
        await server.began.wait()
        server.on["tools/call"] = replying(lambda: reply)
        with pytest.raises(failure) as raised:
            await call(session)
        assert type(raised.value) is failure
        del server.on["tools/call"]
        assert await call(session) == "done"
        held.cancel()


async def test_a_connection_that_breaks_within_an_answer_fails_its_request_and_no_other() -> None:
    async def half(_: Request, message: dict[str, Any]) -> Response:
        whole = json.dumps(result(message, text("done")))
        return Response(
            whole[:20], media_type="application/json", headers={"content-length": str(len(whole))}
        )

    async with bad_server() as server, opened(server) as session:
        server.on["tools/call"] = half
        with pytest.raises(UpstreamLostError):
            await call(session)
        assert session.is_open
        del server.on["tools/call"]
        assert await call(session) == "done"


async def test_a_redirect_to_another_origin_is_not_followed() -> None:
    async with bad_server() as other, bad_server() as server:
        async with opened(server, headers={"authorization": SECRET}) as session:
            there = f"{other.url}/mcp"
            server.on["tools/call"] = replying(lambda: RedirectResponse(there, 307))
            with pytest.raises(UpstreamRefusedError):
                await call(session)
            server.on["DELETE"] = server.on["tools/call"]
        assert other.asked == []
        server.on["initialize"] = server.on["server/discover"] = server.on["tools/call"]
        with pytest.raises(UpstreamAwayError):
            async with opened(server):
                pass
        assert other.asked == []


async def test_a_redirect_within_the_origin_is_followed_with_all_that_was_sent() -> None:
    async def moved(request: Request, message: dict[str, Any]) -> Response:
        if request.url.path == "/mcp":
            return RedirectResponse("/mcp/", 307)
        return JSONResponse(result(message, text("moved")))

    async with bad_server() as server, opened(server, headers={"x-key": "k"}) as session:
        server.on["tools/call"] = moved
        assert await call(session) == "moved"
        first, second = (headers for method, headers in server.asked if method == "tools/call")
        assert first == second
        assert first["x-key"] == "k"


async def test_a_cookie_comes_back_and_its_call_is_made_once() -> None:
    async def marking(_: Request, message: dict[str, Any]) -> Response:
        return JSONResponse(result(message, text("done")), headers={"set-cookie": "node=7; Path=/"})

    async with bad_server() as server, opened(server) as session:
        server.on["tools/call"] = marking
        for _ in range(2):
            assert await call(session) == "done"
        first, second = (headers for method, headers in server.asked if method == "tools/call")
        assert "cookie" not in first
        assert second["cookie"] == "node=7"


async def test_a_handshake_that_hangs_ends_at_the_deadline_and_leaves_no_connection() -> None:
    async with bad_server() as server:
        server.on["initialize"] = server.holding
        connector = SdkConnector()
        with pytest.raises(UpstreamAwayError, match="did not answer within"):
            await connector.open(server.spec(connect_seconds=0.3))
        await eventually(lambda: not connections_to(server.url))
        await connector.aclose()


async def test_a_socket_that_accepts_and_says_nothing_is_given_up_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        connector = SdkConnector()
        server = BadServer(url=f"http://127.0.0.1:{mute.getsockname()[1]}")
        with pytest.raises(UpstreamAwayError, match="did not answer within"):
            await connector.open(server.spec(connect_seconds=0.3))
        await eventually(lambda: not connections_to(server.url))
        await connector.aclose()


async def test_a_caller_that_leaves_during_the_handshake_leaves_no_session() -> None:
    async with bad_server() as server:

        async def unfinished(request: Request, message: dict[str, Any]) -> Response:
            headers = {"mcp-session-id": server.greeting(message).headers["mcp-session-id"]}
            held = await server.holding(request, message)
            held.headers.update(headers)
            return held

        server.on["initialize"] = unfinished
        connector = SdkConnector()
        connecting = asyncio.create_task(connector.open(server.spec()))
        await server.began.wait()
        assert len(server.sessions) == 1
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert server.sessions == set()
        await connector.aclose()


async def test_a_call_that_is_cancelled_is_told_and_gives_its_connection_back() -> None:
    async with bad_server() as server, opened(server) as session:
        server.on["tools/call"] = server.holding
        calling = asyncio.create_task(call(session))
        await server.began.wait()
        asked = next(m for m in server.messages if m.get("method") == "tools/call")
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await eventually(lambda: "notifications/cancelled" in server.methods())
        await eventually(lambda: not connections_to(server.url))
        cancelled = [m for m in server.messages if m.get("method") == "notifications/cancelled"]
        assert [m["params"]["requestId"] for m in cancelled] == [asked["id"]]
        del server.on["tools/call"]
        assert await call(session) == "done"


async def test_a_stream_that_could_be_resumed_is_not_when_its_call_was_given_up() -> None:
    async with bad_server() as server, opened(server) as session:

        async def resumable(_: Request, __: dict[str, Any]) -> Response:
            async def stream() -> AsyncIterator[str]:
                yield "id: 1\nretry: 1\ndata:\n\n"
                server.began.set()
                await server.go_on.wait()

            return StreamingResponse(stream(), media_type="text/event-stream")

        server.on["tools/call"] = resumable
        with pytest.raises(UpstreamSlowError):
            await call(session, seconds=0.2)
        await eventually(lambda: not connections_to(server.url))
        assert not any("last-event-id" in headers for _, headers in server.asked)


async def test_a_stream_that_ends_before_its_answer_is_gone_on_with() -> None:
    async def first(_: Request, __: dict[str, Any]) -> Response:
        return Response("id: 7\nretry: 1\ndata:\n\n", media_type="text/event-stream")

    async def rest(request: Request, _: dict[str, Any]) -> Response:
        if request.headers.get("last-event-id") != "7":
            return Response(status_code=405)
        asked = next(m for m in server.messages if m.get("method") == "tools/call")
        return Response(event(result(asked, text("after all"))), media_type="text/event-stream")

    async with bad_server() as server, opened(server) as session:
        server.on.update({"tools/call": first, "GET": rest})
        assert await call(session) == "after all"
        assert server.methods().count("tools/call") == 1


async def test_a_stream_that_cannot_be_gone_on_with_is_lost() -> None:
    async def first(_: Request, __: dict[str, Any]) -> Response:
        return Response("id: 7\nretry: 1\ndata:\n\n", media_type="text/event-stream")

    async with bad_server() as server, opened(server) as session:
        server.on["tools/call"] = first
        with pytest.raises(UpstreamLostError):
            await call(session)
        del server.on["tools/call"]
        assert await call(session) == "done"


async def test_answers_on_streams_give_their_connection_back_for_the_next_call() -> None:
    ports = set[Any]()

    async def streamed(request: Request, message: dict[str, Any]) -> Response:
        assert request.client is not None
        ports.add(request.client.port)

        async def stream() -> AsyncIterator[str]:
            yield event(result(message, text("done")))

        return StreamingResponse(stream(), media_type="text/event-stream")

    async with bad_server() as server, opened(server) as session:
        server.on["tools/call"] = streamed
        for _ in range(20):
            assert await call(session) == "done"
    # The end of a stream may come after the next call has begun.
    assert len(ports) <= 4


async def test_a_stream_that_goes_on_after_its_answer_holds_nobody_up() -> None:
    async def endless(_: Request, message: dict[str, Any]) -> Response:
        async def stream() -> AsyncIterator[str]:
            yield event(result(message, text("done")))
            await server.go_on.wait()

        return StreamingResponse(stream(), media_type="text/event-stream")

    async with bad_server() as server, opened(server) as session:
        server.on["tools/call"] = endless
        for _ in range(3):
            assert await call(session) == "done"
        await eventually(lambda: not connections_to(server.url))


async def test_what_a_server_asks_before_it_answers_is_declined_and_what_it_tells_is_heard() -> None:
    heard, declined = list[Any](), asyncio.Event()
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    roots = {"jsonrpc": "2.0", "id": "q1", "method": "roots/list"}

    async def asking(_: Request, message: dict[str, Any]) -> Response:
        async def stream() -> AsyncIterator[str]:
            yield event(changed) + event(roots)
            await declined.wait()
            yield event(result(message, text("done")))

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def answered(_: Request, message: dict[str, Any]) -> Response:
        assert "error" in message
        declined.set()
        return Response(status_code=202)

    async with bad_server() as server, opened(server, heard.append) as session:
        server.on.update({"tools/call": asking, "POST": answered})
        assert await call(session) == "done"
    assert OfferKind.TOOLS in heard


async def test_progress_that_comes_with_an_answer_is_told_in_order_and_before_it() -> None:
    told = list[float]()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        await asyncio.sleep(0)
        told.append(progress)

    async def telling(_: Request, message: dict[str, Any]) -> Response:
        token = message["params"]["_meta"]["progressToken"]
        lines = [
            event(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/progress",
                    "params": {"progressToken": token, "progress": each},
                }
            )
            for each in (1, 2, 3)
        ]
        return Response(
            "".join([*lines, event(result(message, text("done")))]), media_type="text/event-stream"
        )

    async with bad_server() as server, opened(server) as session:
        server.on["tools/call"] = telling
        await session.request("tools/call", {"name": "do"}, timeout_seconds=30, on_progress=on_progress)
        assert told == [1, 2, 3]


class Working:
    """Reports progress again and again, each time when the last report was heard, for ``seconds`` before the answer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.heard = asyncio.Event()

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.set()

    async def call(self, _: Request, message: dict[str, Any]) -> Response:
        token = message["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": 1}
        report = event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

        async def stream() -> AsyncIterator[str]:
            loop = asyncio.get_running_loop()
            end = loop.time() + self.seconds
            while loop.time() < end:
                self.heard.clear()
                yield report
                await self.heard.wait()
            yield event(result(message, text("done")))

        return StreamingResponse(stream(), media_type="text/event-stream")


async def test_a_call_that_reports_progress_is_not_given_up() -> None:
    working = Working(seconds=1.5)
    async with bad_server(**{"tools/call": working.call}) as server, opened(server) as session:
        answer = await session.request(
            "tools/call",
            {"name": "do"},
            timeout_seconds=1,
            total_seconds=30,
            on_progress=working.on_progress,
        )
        assert answer == text("done")


async def test_a_call_that_reports_progress_for_ever_ends_at_its_total() -> None:
    working, loop = Working(seconds=60), asyncio.get_running_loop()
    async with bad_server(**{"tools/call": working.call}) as server, opened(server) as session:
        start = loop.time()
        with pytest.raises(UpstreamSlowError):
            await session.request(
                "tools/call",
                {"name": "do"},
                timeout_seconds=1,
                total_seconds=1.5,
                on_progress=working.on_progress,
            )
        assert 1.5 <= loop.time() - start < 30
        await eventually(lambda: not connections_to(server.url))


async def test_a_session_that_is_closed_during_a_call_ends_the_call() -> None:
    async with bad_server() as server, opened(server) as session:
        server.on["tools/call"] = server.holding
        calling = asyncio.create_task(call(session))
        await server.began.wait()
        await session.close(end=False)
        with pytest.raises(UpstreamLostError):
            await calling
        await eventually(lambda: not connections_to(server.url))


async def test_a_stream_of_its_own_that_ends_makes_everything_be_looked_up_and_is_opened_again() -> None:
    heard, again = list[Any](), asyncio.Event()

    async def ending(_: Request, __: dict[str, Any]) -> Response:
        if server.methods().count("GET") == 2:
            again.set()
        return Response("retry: 1\n\n", media_type="text/event-stream")

    async with bad_server(GET=ending) as server, opened(server, heard.append):
        await again.wait()
        assert set(heard) == set(OfferKind)


async def test_two_hundred_pages_are_one_list() -> None:
    async def page(_: Request, message: dict[str, Any]) -> Response:
        at = int(message.get("params", {}).get("cursor", 0))
        tools = [{"name": f"t{at}-{n}", "inputSchema": {"type": "object"}} for n in range(5)]
        more = {"nextCursor": str(at + 1)} if at < 199 else {}
        return JSONResponse(result(message, {"tools": tools, **more}))

    async with bad_server() as server, opened(server) as session:
        server.on["tools/list"] = page
        assert (
            len({tool["name"] for tool in (await session.definitions(OfferKind.TOOLS)).definitions}) == 1000
        )


async def test_a_list_that_is_never_told_fails_after_the_time_to_connect() -> None:
    async with bad_server() as server, opened(server, connect_seconds=0.5) as session:
        server.on["tools/list"] = server.holding
        with pytest.raises(UpstreamSlowError):
            await session.definitions(OfferKind.TOOLS)


async def greet_without_session(_: Request, message: dict[str, Any]) -> Response:
    greeted = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "bad", "version": "1"},
    }
    return JSONResponse(result(message, greeted))


async def test_a_list_that_the_upstream_does_not_know_is_empty_and_one_that_cannot_be_found_fails() -> None:
    async with bad_server(initialize=greet_without_session) as server, opened(server) as session:
        server.on["tools/list"] = replying(lambda: JSONResponse(error(None, "Method not found", -32601), 404))
        assert await session.definitions(OfferKind.TOOLS) == Listing()
        server.on["tools/list"] = replying(lambda: PlainTextResponse("404 page not found", 404))
        with pytest.raises(UpstreamRejectedError, match="HTTP 404: 404 page not found"):
            await session.definitions(OfferKind.TOOLS)


def gzipped(body: bytes) -> bytes:
    return gzip.compress(body, 1)


async def streamed(body: bytes) -> AsyncIterator[bytes]:
    yield body


BOMB = b" " * 40_000_000
EVENT_IN_GZIP = gzipped(b"data:" + BOMB)
BOMBS: dict[str, Callable[[], Response]] = {
    "plain": lambda: Response(BOMB),
    "without a length": lambda: StreamingResponse(streamed(BOMB)),
    "gzip": lambda: Response(gzipped(BOMB), headers={"content-encoding": "gzip"}),
    "deflate": lambda: Response(zlib.compress(BOMB, 1), headers={"content-encoding": "deflate"}),
    "gzip twice": lambda: Response(gzipped(gzipped(BOMB)), headers={"content-encoding": "gzip, gzip"}),
    "an event": lambda: Response(b"data:" + BOMB, media_type="text/event-stream"),
    "an event in gzip": lambda: Response(
        EVENT_IN_GZIP, media_type="text/event-stream", headers={"content-encoding": "gzip"}
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_an_answer_of_more_decoded_bytes_than_allowed_is_dropped_and_fails_its_request_alone(
    bomb: str,
) -> None:
    bounds = Bounds(message_bytes=1_000_000)
    async with bad_server() as server, opened(server, bounds=bounds) as session:
        server.on["tools/call"] = replying(BOMBS[bomb])
        tracemalloc.start()
        try:
            with pytest.raises(UpstreamOversizeError, match="more than 1000000 bytes"):
                await call(session)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # The server is in this process too, and holds the bomb once more where it is not encoded.
        assert "gzip" not in bomb or peak < 10_000_000
        del server.on["tools/call"]
        assert await call(session) == "done"


async def test_other_work_goes_on_while_an_encoded_body_is_decoded() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    body = Encoded(gzipped(BOMB))
    response = httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=body)
    counting = asyncio.create_task(count_turns())
    await read_bounded(response, len(BOMB))
    counting.cancel()
    assert response.content == BOMB
    assert turns >= 30


class Encoded(httpx2.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body


@pytest.mark.parametrize(
    ("bounds", "names", "why"),
    [
        (
            Bounds(list_items=7),
            7,
            "only the first 7 of its tools are listed: there is more than its list_items, 7",
        ),
        (Bounds(list_bytes=5_000), 4, "only the first 4 of its tools .* list_bytes, 5000"),
        (Bounds(message_bytes=2_000), 0, "none of its tools are listed: .* message_bytes, 2000"),
    ],
)
async def test_a_list_over_a_limit_is_cut_and_says_so(bounds: Bounds, names: int, why: str) -> None:
    endless = 0

    async def page(_: Request, message: dict[str, Any]) -> Response:
        nonlocal endless
        endless += 1
        tools = [
            {"name": f"t{endless}-{n}", "description": "d" * 1000, "inputSchema": {"type": "object"}}
            for n in range(5)
        ]
        return JSONResponse(result(message, {"tools": tools, "nextCursor": str(endless)}))

    async with bad_server() as server, opened(server, bounds=bounds) as session:
        server.on["tools/list"] = page
        listing = await session.definitions(OfferKind.TOOLS)
        assert len(listing.definitions) == names
        assert re.search(why, listing.missing or "")
        assert endless <= 2
        assert await call(session) == "done"


@pytest.mark.parametrize("as_stream", [False, True])
async def test_an_answer_of_ten_megabytes_arrives(*, as_stream: bool) -> None:
    async def big(_: Request, message: dict[str, Any]) -> Response:
        body = json.dumps(result(message, text("x" * 10_000_000)))
        if as_stream:
            return Response(f"event: message\ndata: {body}\n\n", media_type="text/event-stream")
        return Response(body, media_type="application/json")

    async with bad_server() as server, opened(server) as session:
        server.on["tools/call"] = big
        assert len(await call(session)) == 10_000_000


async def test_the_upstreams_headers_are_in_no_log_no_error_and_no_repr(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = list[str]()
    async with bad_server() as server:
        async with opened(server, headers={"authorization": SECRET}) as session:
            seen.append(repr(server.spec(headers={"authorization": SECRET})))
            for reply in (PlainTextResponse("no", 401), PlainTextResponse("no", 500), Response("{")):
                server.on["tools/call"] = replying(lambda reply=reply: reply)  # type: ignore[misc]
                with pytest.raises(Exception) as raised:  # noqa: PT011 - any kind must keep it
                    await call(session)
                seen.append(str(raised.value))
        assert all(headers["authorization"] == SECRET for _, headers in server.asked)
    assert SECRET not in caplog.text
    assert not any(SECRET in each for each in seen)


async def test_a_session_of_another_process_is_gone_on_with_and_told_when_it_is_unknown() -> None:
    async with bad_server() as server, opened(server) as session:
        connector = SdkConnector()
        resumed = await connector.open(server.spec(), resume=session.resume_with)
        assert await call(resumed) == "done"
        assert server.methods().count("initialize") == 1
        server.sessions.clear()
        with pytest.raises(UpstreamExpiredError):
            await call(resumed)
        await resumed.close(end=False)
        await connector.aclose()
