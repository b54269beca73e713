"""``cwm engines``: engines of a running gateway as an operator sees them, moves and drains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import TypeAlias

import httpx2
import pytest

from tests.adapters.vllm.fake_vllm import fake_vllm
from tests.cli.command import cwm, refused, serving

pytestmark = pytest.mark.slow

Run: TypeAlias = Callable[..., Awaitable[CompletedProcess[str]]]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    """Commands at a gateway with the engines a and b, which serve one model; the session s is on a."""
    async with fake_vllm() as a, fake_vllm() as b:
        (tmp_path / "cwm.yaml").write_text(f"engines: {{a: {{url: '{a.url}'}}, b: {{url: '{b.url}'}}}}\n")
        no_cache = {"CWM_LMCACHE_URL": "none", "CWM_COORDINATOR_URL": "none"}
        with serving(tmp_path, CWM_CONFIG=str(tmp_path / "cwm.yaml"), **no_cache) as (url, _):

            async def command(*arguments: str) -> CompletedProcess[str]:
                return await asyncio.to_thread(
                    cwm, tmp_path, "engines", *arguments, "--url", url, COLUMNS="200"
                )

            async with httpx2.AsyncClient(base_url=url) as client:
                asked = {"model": "fake", "messages": [{"role": "user", "content": "hey"}], "max_tokens": 2}
                headers = {"CWM-Session-Id": "s"}
                turn = await client.post("/v1/chat/completions", json=asked, headers=headers)
                assert turn.status_code == 200, turn.text
            yield command


async def test_engines_are_listed_a_session_moves_and_an_engine_is_drained(run: Run) -> None:
    listed = json.loads((await run("list", "--json")).stdout)["engines"]
    assert [(each["name"], each["answers"], each["sessions"]) for each in listed] == [
        ("a", True, 1),
        ("b", True, 0),
    ]
    moved = await run("move", "s", "b")
    assert moved.stdout.startswith("Session s is on b now, after "), moved
    again = json.loads((await run("move", "s", "b", "--json")).stdout)
    assert (again["source"], again["target"], again["canary"]["result"]) == ("b", "b", "skipped")
    assert (await run("drain", "b")).stdout == "Engine b: 1 session moved, none is left.\n"
    table = (await run("list")).stdout
    assert "answers, draining" in table
    assert "draining since" in (await run("show", "b")).stdout
    assert "is being drained" in refused(await run("move", "s", "b"), "CWM-1003")
    assert (await run("drain", "b", "--undo")).stdout == "Engine b takes new sessions again.\n"


async def test_what_cannot_move_is_named_with_a_status_of_its_own(run: Run) -> None:
    assert (await run("drain", "b")).returncode == 0
    left = await run("drain", "a")
    assert left.returncode == 1
    assert "Engine a: 0 sessions moved, 1 session stayed." in left.stdout
    assert "CWM-3011" in left.stdout
    as_json = await run("drain", "a", "--json")
    assert (as_json.returncode, json.loads(as_json.stdout)["success"]) == (1, False)


async def test_a_model_is_upgraded_and_both_deployments_are_shown(run: Run) -> None:
    before = await run("upgrade", "fake")
    assert before.stdout.startswith("Model fake is not being upgraded.\n"), before
    begun = await run("upgrade", "fake", "--to", "b")
    assert (begun.returncode, ": 0 windows frozen there, 0 left.\n" in begun.stdout) == (0, True), begun
    assert [line.split()[0] for line in begun.stdout.splitlines()[1:]] == ["ENGINE", "a", "b"]
    shown = json.loads((await run("upgrade", "fake", "--json")).stdout)
    assert shown["deployment"] == shown["engines"]["b"]
    assert "'c' is no engine" in refused(await run("upgrade", "fake", "--to", "c"), "CWM-1003")
    refused(await run("upgrade", "unheard-of"), "CWM-1003")
    refused(await run("upgrade", "fake", "--to", "b", "--undo"), "CWM-1003")
    assert "not being upgraded" in (await run("upgrade", "fake", "--undo")).stdout


async def test_unknown_engines_and_sessions_are_refused(run: Run) -> None:
    for arguments in (("show", "c"), ("move", "s", "c"), ("drain", "c"), ("drain", "c", "--undo")):
        assert "no engine 'c'" in refused(await run(*arguments), "CWM-1003")
    refused(await run("move", "nobody", "b"), "CWM-2001")
