"""``cwm serve`` and the commands that are its clients, without an engine behind them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx2
import pytest
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError

from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.cli.gateway.client import ToolRefusedError, call_tool
from cwm.cli.gateway.retries import repeated, seconds_of
from tests.adapters.http.test_sockets import peer
from tests.certificates import certified
from tests.cli.command import cwm, environment, refused, serving
from tests.cli.test_hangup import CWM, on_terminal, read_until
from tests.contracts.nouns import a_session, freeze
from tests.transport.mcp.gateway import serving as serving_app

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("gateway")) as (url, _):
        yield url


@pytest.fixture
async def stocked(sqlite_url: str, tmp_path: Path) -> AsyncIterator[str]:
    """A gateway whose registry has a window, the session that it was frozen from, and another one with metadata."""
    database = open_database(sqlite_url)
    registry = SqlRegistry(database)
    await freeze(registry, "w", tenant="default")
    await registry.add_session(a_session("s", "default", metadata={"ticket": 42}), ())
    await database.dispose()
    with serving(tmp_path) as (url, _):
        yield url


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[str]:
    """The URL of a server that has this one answer to every POST."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with _listening(Answer) as url:
        yield url


@contextmanager
def _listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@contextmanager
def before(gateway: str, status: int | None, error: object) -> Iterator[str]:
    """The URL of a proxy that lets everything pass but calls, which it answers itself: with ``error`` in JSON-RPC's way.

    Without a status it hangs up on a call, and on all that comes after it.
    """
    to = httpx2.URL(gateway)
    gone = False

    class Forward(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal gone
            asked = self.rfile.read(int(self.headers["content-length"]))
            message = json.loads(asked)
            gone = gone or (status is None and message["method"] == "tools/call")
            if gone:
                self.close_connection = True
                return
            if status is None or message["method"] != "tools/call":
                there = HTTPConnection(to.host, to.port)
                there.request("POST", self.path, asked, dict(self.headers))
                answer = there.getresponse()
                headers, body = dict(answer.headers), answer.read()
                there.close()
                self.answer(answer.status, headers, body)
            else:
                told = {"jsonrpc": "2.0", "id": message["id"], "error": error}
                headers = {"content-type": "application/json" if error else "text/html"}
                self.answer(status, headers, json.dumps(told).encode() if error else b"<html>")

        def do_GET(self) -> None:
            self.answer(405, {}, b"")

        def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with _listening(Forward) as url:
        yield url


@dataclass(slots=True)
class Pauses:
    """Notes how long somebody would wait, and does not wait."""

    seconds: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def test_what_is_retryable_is_repeated_after_a_second_that_doubles(gateway: str) -> None:
    pauses = Pauses()
    with pytest.raises(ToolRefusedError, match="vLLM cannot be reached"):
        await repeated(partial(call_tool, gateway, "session_create", {}), 3, pauses)
    for longest, seconds in zip((1, 2, 4), pauses.seconds, strict=True):
        assert longest / 2 <= seconds <= longest


async def test_what_is_not_retryable_is_not_repeated(gateway: str) -> None:
    pauses = Pauses()
    with pytest.raises(ToolRefusedError, match="no window"):
        await repeated(partial(call_tool, gateway, "window_status", {"window_name": "nothing"}), 3, pauses)
    assert pauses.seconds == []


@pytest.mark.parametrize(
    ("status", "retry_after", "waited"),
    [(503, "7", [7, 7]), (429, "60", [60, 60]), (503, "61", []), (500, "7", []), (401, "7", [])],
)
async def test_a_client_waits_as_long_as_it_is_asked_to_up_to_a_minute(
    status: int, retry_after: str, waited: list[float]
) -> None:
    pauses = Pauses()
    with answering(status, b"", retry_after=retry_after) as url, pytest.raises(ConnectionError):
        await repeated(partial(call_tool, url, "window_list", {}), 2, pauses)
    assert pauses.seconds == waited


def test_a_retry_after_that_is_a_date_is_the_time_until_then() -> None:
    then = datetime.now(UTC) + timedelta(seconds=90)
    assert seconds_of(format_datetime(then, usegmt=True)) == pytest.approx(90, abs=5)
    assert seconds_of("soon") is None


async def test_a_pause_is_never_longer_than_a_minute() -> None:
    pauses = Pauses()

    async def fails() -> None:
        raise ToolRefusedError({"code": "CWM-5001", "message": "No.", "retryable": True})

    with pytest.raises(ToolRefusedError):
        await repeated(fails, 9, pauses)
    assert len(pauses.seconds) == 9
    assert all(30 <= seconds <= 60 for seconds in pauses.seconds[6:])


async def test_a_refusal_that_says_when_to_come_again_is_waited_for(gateway: str) -> None:
    pauses = Pauses()
    refusal = {"code": "CWM-7001", "message": "No.", "retryable": True, "retry_after_seconds": 42}
    error = {"code": -32000, "message": "No.", "data": refusal}
    with before(gateway, 429, error) as proxy, pytest.raises(ToolRefusedError):
        await repeated(partial(call_tool, proxy, "window_list", {}), 1, pauses)
    assert pauses.seconds == [42]


async def test_a_turn_of_which_text_was_printed_is_not_repeated(tmp_path: Path) -> None:
    server, turns = FastMCP("breaks off"), list[tuple[str, str, int]]()

    @server.tool
    async def session_generate(session_id: str, text: str, max_tokens: int, context: Context) -> None:
        turns.append((session_id, text, max_tokens))
        await context.report_progress(1, message="Once upon")
        raise ToolError(json.dumps({"code": "CWM-5001", "message": "Gone.", "retryable": True}))

    async with serving_app(server.http_app()) as url:
        command = ("sessions", "generate", "s", "--text", "And?", "--max-tokens", "8", "--url", url)
        with on_terminal(tmp_path, CWM, *command, CWM_CLIENT_RETRIES="1") as (process, terminal):
            await asyncio.to_thread(read_until, terminal, "Once upon")
            assert await asyncio.to_thread(process.wait, 60) == 1
            os.close(terminal)
    assert (tmp_path / "log").read_text() == "CWM-5001: Gone.\n"
    assert turns == [("s", "And?", 8)]


def test_a_client_command_says_that_it_tries_again_as_often_as_it_is_set(tmp_path: Path) -> None:
    for command in (("windows", "list"), ("reconcile", "--json")):
        run = cwm(tmp_path, *command, CWM_PORT="9", CWM_CLIENT_RETRIES="1")
        assert "Trying again in 1 s." in run.stderr
        assert run.stderr.count("Trying again") == 1
        assert run.stderr.splitlines()[-1].startswith("CWM-5001: No CWM gateway answers")


def test_an_empty_gateway_says_so(gateway: str, tmp_path: Path) -> None:
    windows = cwm(tmp_path, "windows", "list", "--url", gateway)
    sessions = cwm(tmp_path, "sessions", "list", "--url", f"{gateway}/mcp")

    assert (windows.stdout, windows.returncode) == ("There are no windows.\n", 0)
    assert (sessions.stdout, sessions.returncode) == ("There are no sessions.\n", 0)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("windows", "list", "--search", "x"), "No window is like that.\n"),
        (("windows", "list", "--tag", "x"), "No window is like that.\n"),
        (("windows", "list", "--model", "x"), "No window is like that.\n"),
        (("sessions", "list", "--state", "frozen"), "No session is frozen.\n"),
    ],
)
def test_a_filter_that_leaves_nothing_does_not_say_that_there_is_nothing(
    gateway: str, tmp_path: Path, command: tuple[str, ...], said: str
) -> None:
    assert cwm(tmp_path, *command, "--url", gateway).stdout == said


async def test_a_deleted_window_says_what_became_of_its_session(stocked: str, tmp_path: Path) -> None:
    lines = cwm(tmp_path, "windows", "delete", "w", "--yes", "--url", stocked).stdout.splitlines()
    assert lines == ["Deleted window w: 0 blocks, 0 B freed.", "Its session of-w stays: expired."]


async def test_the_metadata_of_a_session_is_shown(stocked: str, tmp_path: Path) -> None:
    assert '{"ticket": 42}' in cwm(tmp_path, "sessions", "show", "s", "--url", stocked).stdout


def test_json_is_the_tool_s_own_answer(gateway: str, tmp_path: Path) -> None:
    run = cwm(tmp_path, "windows", "list", "--json", "--url", gateway)

    assert json.loads(run.stdout) == {"windows": [], "total": 0, "has_more": False}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("windows", "show", "nothing"), "CWM-2002"),
        (("windows", "thaw", "nothing"), "CWM-2002"),
        (("windows", "clone", "nothing", "branch"), "CWM-2002"),
        (("windows", "delete", "nothing", "--yes"), "CWM-2002"),
        (("windows", "show", "../up"), "CWM-1002"),
        (("windows", "freeze", "nobody", "keep"), "CWM-2001"),
        (("windows", "freeze", "no body", "keep"), "CWM-1001"),
        (("windows", "freeze", "nobody", "keep", "--tag", "two words"), "CWM-1003"),
        (("sessions", "show", "nobody"), "CWM-2001"),
        (("sessions", "generate", "nobody", "--text", "hello"), "CWM-2001"),
        (("sessions", "create"), "CWM-5001"),
    ],
    ids=" ".join,
)
def test_a_refusal_is_the_tool_s_code_and_sentence(
    gateway: str, tmp_path: Path, arguments: tuple[str, ...], code: str
) -> None:
    refused(cwm(tmp_path, *arguments, "--url", gateway), code)


def test_no_gateway_is_one_sentence_that_says_what_to_start(tmp_path: Path) -> None:
    sentence = refused(cwm(tmp_path, "windows", "list", CWM_PORT="9"), "CWM-5001")

    assert "http://127.0.0.1:9" in sentence
    assert "cwm up" in sentence


def test_a_proxy_of_the_environment_is_not_asked(gateway: str, tmp_path: Path) -> None:
    proxy = "http://127.0.0.1:9"
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), proxy)
    for arguments in (("windows", "list"), ("reconcile", "--dry-run", "--json")):
        run = cwm(tmp_path, *arguments, "--url", gateway, **proxies, NO_PROXY="", no_proxy="")
        assert run.stdout
        assert run.stderr == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:nine",
        "http://",
        "127.0.0.1:9",
        "ftp://127.0.0.1",
        "http://127.0.0.1:9/?a=b",
        "http://someone:hunter2@127.0.0.1:9",
        "http://someone:hunter2@[::1",
        "http://\udcff",
    ],
    ids=ascii,
)
def test_what_is_no_url_of_a_gateway_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    for command in (("windows", "list"), ("reconcile", "--json")):
        run = cwm(tmp_path, *command, "--url", url)
        assert run.returncode == 2
        assert "Invalid value for --url: must be" in run.stderr
        assert "Traceback" not in run.stderr
        assert "hunter2" not in run.stderr


def test_a_scheme_counts_whatever_its_case(gateway: str, tmp_path: Path) -> None:
    url = gateway.replace("http://", "HTTP://")
    assert cwm(tmp_path, "windows", "list", "--url", f"{url}/mcp/").stdout == "There are no windows.\n"


def test_a_key_is_one_line_of_printable_ascii(gateway: str, tmp_path: Path) -> None:
    for command in (("windows", "list"), ("reconcile", "--dry-run", "--json")):
        run = cwm(tmp_path, *command, "--url", gateway, CWM_API_KEY=" cwm_key\r\n")
        assert run.stdout
        assert run.stderr == ""
        for key in ("cwm_hunter2\nx", "cwm_hunter2\x1b", "cwm_hünter2", "cwm_hunter2\udcff"):
            run = cwm(tmp_path, *command, "--url", gateway, CWM_API_KEY=key)
            sentence = refused(run, "CWM-1003", status=2)
            assert "CWM_API_KEY" in sentence
            assert "nter2" not in sentence


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, b"oops", "HTTP status 500"),
        (302, b"", "HTTP status 302"),
        (404, b"oops", "no CWM gateway"),
        (200, b"<html>", "no CWM gateway"),
        (200, b"{}", "no CWM gateway"),
        (200, b"[]", "no CWM gateway"),
    ],
)
def test_reconcile_tells_what_answered_instead_of_a_gateway(
    tmp_path: Path, status: int, body: bytes, said: str
) -> None:
    with answering(status, body) as url:
        assert said in refused(cwm(tmp_path, "reconcile", "--json", "--url", url), "CWM-5001")


def test_something_else_than_a_gateway_is_told_apart_from_an_answer(gateway: str, tmp_path: Path) -> None:
    sentence = refused(cwm(tmp_path, "windows", "list", "--url", f"{gateway}/elsewhere"), "CWM-5001")

    assert "no CWM gateway of this version" in sentence


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, b"oops", "HTTP status 500 (Internal Server Error): it failed"),
        (502, b"<html>", "HTTP status 502 (Bad Gateway): it is a proxy that does not reach the gateway"),
        (503, b"<html>", "HTTP status 503 (Service Unavailable)"),
        (401, b"oops", "HTTP status 401 (Unauthorized)"),
        (599, b"", "HTTP status 599."),
        (200, b"<html>", "no CWM gateway of this version"),
    ],
)
async def test_a_client_command_tells_what_answered_instead_of_a_gateway(
    status: int, body: bytes, said: str
) -> None:
    with answering(status, body) as url, pytest.raises(ConnectionError) as failed:
        await call_tool(url, "window_list", {})

    assert said in str(failed.value)
    assert "cwm up" not in str(failed.value)


@pytest.mark.parametrize(
    ("status", "error", "raised", "said"),
    [
        (
            504,
            None,
            ConnectionError,
            "did not answer window_list: HTTP status 504 (Gateway Timeout): it is a proxy that waited too long",
        ),
        (
            401,
            {"code": -32600, "message": "No.", "data": {"code": "CWM-9002", "message": "No."}},
            ToolRefusedError,
            "No. Give CWM_API_KEY",
        ),
    ],
)
async def test_what_comes_of_a_call_in_place_of_an_answer_is_told(
    gateway: str, status: int, error: object, raised: type[Exception], said: str
) -> None:
    with before(gateway, status, error) as url, pytest.raises(raised, match=re.escape(said)):
        await call_tool(url, "window_list", {})


async def test_a_gateway_that_is_killed_during_a_call_is_one_sentence(gateway: str, tmp_path: Path) -> None:
    with before(gateway, None, None) as url:
        run = await asyncio.to_thread(cwm, tmp_path, "windows", "list", "--url", url)

    assert "did not answer window_list" in refused(run, "CWM-5001")


async def test_a_certificate_of_a_gateway_that_is_not_accepted_is_told_with_the_reason(
    tmp_path: Path,
) -> None:
    served, _ = certified(tmp_path)

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with peer(serve, served) as address:
        url = f"https://localhost:{address.rpartition(':')[2]}"
        with pytest.raises(ConnectionError, match=r"not accepted: self-signed certificate\. SSL_CERT_FILE"):
            await call_tool(url, "window_list", {})
        run = await asyncio.to_thread(cwm, tmp_path, "reconcile", "--json", "--url", url)
    assert "not accepted: self-signed certificate" in refused(run, "CWM-5001")


async def test_a_gateway_that_speaks_no_tls_is_told_as_that() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    async with peer(serve) as address:
        url = f"https://localhost:{address.rpartition(':')[2]}"
        with pytest.raises(ConnectionError, match=r"speaks no TLS. Give --url with http://"):
            await call_tool(url, "window_list", {})


@pytest.mark.parametrize("holds", ["no certificate", None])
def test_an_ssl_cert_file_that_cannot_be_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: str | None
) -> None:
    file = tmp_path / "certificates.pem"
    if holds:
        file.write_text(holds)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    for command in (("windows", "list"), ("reconcile",)):
        told = refused(cwm(tmp_path, *command, "--url", "https://127.0.0.1:1"), "CWM-5001")
        assert "cannot be asked over TLS" in told
        assert "SSL_CERT_FILE" in told


def test_a_turn_needs_a_message_or_a_text(tmp_path: Path) -> None:
    for both in ((), ("--message", "a", "--text", "b")):
        refused(cwm(tmp_path, "sessions", "generate", "some", *both), "CWM-1003", status=2)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    for arguments in (
        ("windows", "show", "\udcff"),
        ("windows", "list", "--search", "\udcff"),
        ("windows", "list", "--tag", "\udcff"),
        ("sessions", "generate", "some", "--message", "\udcff"),
    ):
        refused(cwm(tmp_path, *arguments), "CWM-1003", status=2)
    piped = subprocess.run(
        [sys.executable, "-m", "cwm", "sessions", "generate", "some", "-m", "-"],
        input=b"\xff\xfe",
        env=environment(tmp_path, {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8:strict"}),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert piped.returncode == 2, piped.stderr
    assert piped.stderr.startswith(b"CWM-1003: ")


@pytest.mark.parametrize("host", ["\udcff", "a" * 300, "a..b"], ids=["bytes", "long", "dots"])
def test_what_is_no_host_is_one_sentence(tmp_path: Path, host: str) -> None:
    refused(cwm(tmp_path, "serve", "--host", host, CWM_ALLOW_UNAUTHENTICATED="true"), "CWM-1003")


def test_a_system_message_goes_with_no_text(tmp_path: Path) -> None:
    run = cwm(tmp_path, "sessions", "generate", "some", "--text", "a", "--system", "b")
    assert "--system" in refused(run, "CWM-1003", status=2)


def test_serve_says_where_it_is_and_who_may_come_in(tmp_path: Path) -> None:
    with serving(tmp_path) as (url, process):
        assert url.startswith("http://127.0.0.1:")
        assert process.stdout is not None
        assert "No auth, loopback only" in process.stdout.readline()
        assert f"The console, for people: {url}/console" in process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_in_order_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as (_, process):
        process.send_signal(number)
        said, _ = process.communicate(timeout=30)

    assert process.returncode == 0
    assert said.endswith("Stopped.\n")
    assert (tmp_path / "log").read_text() == ""


def test_a_port_in_use_is_one_sentence(gateway: str, tmp_path: Path) -> None:
    port = gateway.rpartition(":")[2]

    sentence = refused(cwm(tmp_path, "serve", "--port", port), "CWM-1003")

    assert port in sentence
    assert "--port" in sentence
