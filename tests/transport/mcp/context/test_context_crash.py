"""A gateway that is killed while agents write has kept whatever it acknowledged."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.transport.mcp.gateway import MODERN, fastmcp_agent

pytestmark = pytest.mark.slow


@contextmanager
def serving(folder: Path, variables: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "cwm", "serve", "--port", "0"],
        cwd=folder,
        env={**environment(folder, {}), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[3].removesuffix("/mcp")
        finally:
            process.kill()


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_every_key_that_was_acknowledged_before_a_kill_is_there_after(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    variables = {"CWM_SHARED_STORE_URL": request.getfixturevalue("redis_url")} if store == "redis" else {}
    acknowledged: dict[str, int] = {}
    enough = asyncio.Event()

    async def write(url: str, writer: int) -> None:
        async with fastmcp_agent(url, MODERN, "acme") as agent:
            for number in range(10_000):
                key = f"{writer}/{number % 50}"
                value = {"n": number, "text": f"{writer} " * 500}
                answer = await agent.call("context_set", {"key": key, "value": value, "scope": "tenant"})
                assert answer.value["success"]
                acknowledged[key] = number
                if len(acknowledged) > 60:
                    enough.set()

    with serving(tmp_path, variables) as (process, url):
        writers = [asyncio.create_task(write(url, writer)) for writer in range(4)]
        async with asyncio.timeout(60):
            await enough.wait()
        process.kill()
        process.wait()
        for writer in writers:
            writer.cancel()
        for writer in writers:
            with suppress(BaseException):
                await writer

    with serving(tmp_path, variables) as (_, url):
        async with fastmcp_agent(url, MODERN, "acme") as agent:
            for key, number in acknowledged.items():
                found = (await agent.call("context_get", {"key": key, "scope": "tenant"})).value
                assert found["found"], key
                # One more may have been written whose answer was on its way.
                assert found["value"]["n"] in {number, number + 50}
