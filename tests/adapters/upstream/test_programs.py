"""Upstreams that are programs, and behave as badly as programs can."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from cwm.adapters.upstream.connector import SdkConnector
from cwm.adapters.upstream.session import SdkSession
from cwm.domain.upstream import Bounds, OfferKind, UpstreamSpec
from cwm.ports.upstream import UpstreamAwayError, UpstreamLostError, UpstreamOversizeError, UpstreamSlowError
from tests.adapters.upstream.programs import open_files, processes_with, spec
from tests.eventually import eventually

pytestmark = pytest.mark.slow

SECRET = "first line of a key\nsecond line of a key"


@asynccontextmanager
async def opened(upstream: UpstreamSpec) -> AsyncIterator[SdkSession]:
    connector = SdkConnector()
    session = await connector.open(upstream)
    try:
        yield session
    finally:
        await session.close(end=True)
        await connector.aclose()


async def call(session: SdkSession, seconds: float = 30) -> str:
    answer = await session.request("tools/call", {"name": "do", "arguments": {}}, timeout_seconds=seconds)
    return str(answer["content"][0]["text"])


async def test_a_program_that_prints_junk_is_understood_all_the_same() -> None:
    junk = "print('starting up...'); print('{\"half\": '); print('[1, 2]', flush=True)\n"
    with capture_logs() as logs:
        async with opened(spec(junk + "serve()")) as session:
            assert [tool["name"] for tool in (await session.definitions(OfferKind.TOOLS)).definitions] == [
                "do"
            ]
            assert await call(session) == "done"
    assert [entry["text"] for entry in logs if entry["event"] == "upstream_said"] == [
        "starting up...",
        '{"half":',
        "[1, 2]",
    ]


async def test_what_a_program_says_is_told_in_short_and_without_its_secrets() -> None:
    code = (
        "sys.stderr.write('x' * 1_000_000 + os.environ['KEY'] + '\\n')\n"
        "sys.stderr.write('key: ' + os.environ['KEY'] + ' end\\n')\nprint(os.environ['KEY'], flush=True)\nserve()"
    )
    with capture_logs() as logs:
        async with opened(spec(code, env={"KEY": SECRET})) as session:
            assert await call(session) == "done"
    told = [str(entry["text"]) for entry in logs if entry["event"] == "upstream_said"]
    assert "key: [hidden]" in told
    assert "[hidden] end" in told
    assert max(map(len, told)) == 2000
    assert not any("of a key" in text for text in told)


async def test_what_a_program_says_stays_readable_whatever_short_words_its_environment_holds() -> None:
    code = "print('10 of 1001 in production, true', os.environ['KEY'], flush=True)\nserve()"
    env = {"KEY": "k-1234", "WORKERS": "1", "STAGE": "prod", "COLOR": "true"}
    with capture_logs() as logs:
        async with opened(spec(code, env=env)) as session:
            assert await call(session) == "done"
    told = [str(entry["text"]) for entry in logs if entry["event"] == "upstream_said"]
    assert told == ["10 of 1001 in production, true [hidden]"]


async def test_the_last_words_of_a_program_that_cannot_start_are_told() -> None:
    with capture_logs() as logs, pytest.raises(UpstreamAwayError):
        async with opened(spec("sys.exit('no configuration')")):
            pass
    assert "no configuration" in [entry.get("text") for entry in logs]


@pytest.mark.parametrize(
    ("command", "why"), [("/there/is/no/such", "No such file"), ("/etc/passwd", "Permission denied")]
)
async def test_a_program_that_is_none_leaves_nothing_open(command: str, why: str) -> None:
    before = open_files()
    for _ in range(3):
        with pytest.raises(UpstreamAwayError, match=why):
            await SdkConnector().open(UpstreamSpec("none", command=(command,)))
    assert open_files() == before


async def test_a_program_that_never_answers_is_ended_at_the_deadline() -> None:
    marker = uuid4().hex
    silent = spec("time.sleep(600)", env={"MARKER": marker}, connect_seconds=0.5)
    before = open_files()
    with pytest.raises(UpstreamAwayError, match="did not answer within"):
        await SdkConnector().open(silent)
    assert processes_with(marker) == []
    assert open_files() == before


async def test_a_program_that_starts_so_slowly_that_both_greetings_reach_it_speaks_the_new_way() -> None:
    """It reads nothing until it was greeted the old way too; what it heard first has settled how it speaks."""
    server = "from fastmcp import FastMCP; s = FastMCP('s'); s.tool(lambda: 'done', name='do'); s.run(show_banner=False)"
    slow = (
        "import subprocess, sys\n"
        f"server = subprocess.Popen([sys.executable, '-c', {server!r}], stdin=subprocess.PIPE)\n"
        "held = []\n"
        "while not held or b'\"initialize\"' not in held[-1]:\n    held.append(sys.stdin.buffer.readline())\n"
        "for line in held:\n    server.stdin.write(line)\n"
        "server.stdin.flush()\n"
        "for line in sys.stdin.buffer:\n    server.stdin.write(line)\n    server.stdin.flush()\n"
    )
    upstream = UpstreamSpec("slow", command=(sys.executable, "-c", slow), connect_seconds=10)
    async with opened(upstream) as session:
        assert session.modern
        assert await call(session) == "done"


async def test_a_program_that_ignores_what_it_does_not_know_is_greeted_the_old_way() -> None:
    deaf = "stdin = sys.stdin\nsys.stdin = (line for line in stdin if 'server/discover' not in line)\nserve()"
    async with opened(spec(deaf, connect_seconds=5)) as session:
        assert not session.modern
        assert await call(session) == "done"


async def test_a_program_that_ignores_sigterm_is_killed() -> None:
    marker = uuid4().hex
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nserve()\nwhile True: time.sleep(600)"
    async with opened(spec(stubborn, env={"MARKER": marker})) as session:
        assert await call(session) == "done"
        assert len(processes_with(marker)) == 1
    assert processes_with(marker) == []


async def test_what_a_program_started_ends_with_it_although_it_ends_in_time() -> None:
    marker = uuid4().hex
    parent = "import subprocess\nsubprocess.Popen(['sleep', '600'])\nserve()"
    before = open_files()
    async with opened(spec(parent, env={"MARKER": marker})) as session:
        assert await call(session) == "done"
        assert len(processes_with(marker)) == 2
    assert processes_with(marker) == []
    assert open_files() == before


async def test_a_killed_program_is_noticed_although_its_child_keeps_its_pipes() -> None:
    marker = uuid4().hex
    parent = (
        "import subprocess\nsubprocess.Popen(['sleep', '600'])\n"
        "serve(lambda request: os.kill(os.getpid(), signal.SIGKILL))"
    )
    async with opened(spec(parent, env={"MARKER": marker})) as session:
        with pytest.raises(UpstreamLostError):
            await call(session)
        await session.ended()
        assert not session.is_open
        with pytest.raises(UpstreamAwayError):
            await call(session)
    await eventually(lambda: processes_with(marker) == [])


async def test_a_program_that_is_killed_between_calls_is_not_asked_again() -> None:
    marker = uuid4().hex
    async with opened(spec("serve()", env={"MARKER": marker})) as session:
        assert await call(session) == "done"
        os.kill(processes_with(marker)[0], signal.SIGKILL)
        await session.ended()
        with pytest.raises(UpstreamAwayError):
            await call(session)


@pytest.mark.parametrize(
    "message",
    [
        '{"jsonrpc": "2.0", "id": request["id"], "result": big}',
        '{"id": request["id"], "result": big, "jsonrpc": "2.0"}',
        '{"jsonrpc": "2.0", "result": big, "id": request["id"]}',
        '{"result": big, "id": request["id"], "jsonrpc": "2.0"}',
    ],
)
async def test_an_answer_of_more_bytes_than_allowed_is_dropped_and_fails_its_request_alone(
    message: str,
) -> None:
    code = f"""
def call(request):
    if request["params"]["arguments"].get("small"):
        return {{"content": [{{"type": "text", "text": "done"}}]}}
    big = {{"content": [{{"type": "text", "text": "x" * 5_000_000}}]}}
    print(json.dumps({message}), flush=True)
    return {{}}
serve(call)
"""
    async with opened(spec(code, bounds=Bounds(message_bytes=1_000_000))) as session:
        with pytest.raises(UpstreamOversizeError, match="more than 1000000 bytes"):
            await call(session)
        small = {"name": "do", "arguments": {"small": True}}
        answer = await session.request("tools/call", small, timeout_seconds=30)
        assert answer["content"][0]["text"] == "done"


async def test_an_answer_of_ten_megabytes_arrives() -> None:
    big = "serve(lambda request: {'content': [{'type': 'text', 'text': 'x' * 10_000_000}]})"
    async with opened(spec(big)) as session:
        assert len(await call(session)) == 10_000_000


async def test_a_program_that_does_not_read_does_not_hold_its_callers_for_ever() -> None:
    code = "serve(lambda request: time.sleep(600))"
    async with opened(spec(code)) as session:
        waiting = asyncio.gather(
            *(
                session.request(
                    "tools/call", {"name": "do", "arguments": {"x": "x" * 100_000}}, timeout_seconds=0.5
                )
                for _ in range(5)
            ),
            return_exceptions=True,
        )
        assert {type(each) for each in await waiting} == {UpstreamSlowError}


async def test_many_programs_leave_no_process_and_no_open_file(tmp_path: Path) -> None:
    marker, before = uuid4().hex, open_files()
    connector = SdkConnector()
    one = spec("serve()", env={"MARKER": marker})
    for _ in range(4):
        sessions = await asyncio.gather(*(connector.open(one) for _ in range(10)))
        assert await asyncio.gather(*map(call, sessions)) == ["done"] * 10
        await asyncio.gather(*(session.close(end=True) for session in sessions))
    assert processes_with(marker) == []
    assert open_files() == before


async def test_a_caller_that_leaves_while_a_program_starts_leaves_no_program() -> None:
    marker = uuid4().hex
    silent = spec("time.sleep(600)", env={"MARKER": marker})
    connecting = asyncio.create_task(SdkConnector().open(silent))
    await eventually(lambda: processes_with(marker) != [])
    connecting.cancel()
    await eventually(lambda: processes_with(marker) == [])
    with pytest.raises(asyncio.CancelledError):
        await connecting
