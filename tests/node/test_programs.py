"""The pinned programs are there and are what the tests take them for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.node.programs import CommandLine, Programs, environment, installed

pytestmark = pytest.mark.slow


async def tools(line: CommandLine) -> set[str]:
    """What a server of its own process offers."""
    server = StdioServerParameters(command=line[0], args=list(line[1:]), env=environment())
    async with Client(stdio_client(server)) as client:
        return {tool.name for tool in (await client.list_tools()).tools}


async def test_the_servers_answer_over_stdio(programs: Programs, tmp_path: Path) -> None:
    assert "echo" in await tools(programs.everything())
    assert "read_text_file" in await tools(programs.filesystem(tmp_path))
    assert "create_entities" in await tools(programs.memory())


async def test_server_everything_answers_over_http_until_it_is_stopped(programs: Programs) -> None:
    async with programs.everything_over_http() as served:
        async with Client(streamable_http_client(served.url)) as client:
            answer = await client.call_tool("echo", {"message": "hello"})
        assert "hello" in str(answer.content)
    assert served.process.returncode is not None


def test_two_runs_that_begin_at_once_share_one_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pins := tmp_path / "package.json").write_text('{"private": true}')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ThreadPoolExecutor() as both:
        first, second = both.map(installed, [pins, pins])
    assert first == second
    assert (first.folder / "package.json").exists()
    assert len(list((tmp_path / "cache" / "cwm-tests").iterdir())) == 2


def test_a_package_that_cannot_be_had_fails_with_npms_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pins := tmp_path / "package.json").write_text('{"dependencies": {"nothing": "file:./not-there.tgz"}}')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(RuntimeError, match=r"not-there\.tgz"):
        installed(pins)
    assert {left.suffix for left in (tmp_path / "cache" / "cwm-tests").iterdir()} == {".lock"}
