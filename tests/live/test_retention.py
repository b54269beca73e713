"""What has had its time ends, what is guaranteed fits a quota, and a restarted gateway goes on where one died."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import RefusedError, Talk, talk, words

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SOON = {"CWM_RECONCILE_SECONDS": "0.2"}


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client


async def until(wanted: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await wanted():
            pass


async def refusal(agent: Talk, tool: str, **arguments: object) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        await agent.tool(tool, **arguments)
    return refused.value


async def states(agent: Talk) -> dict[str, str]:
    listed = (await agent.tool("session_list"))["sessions"]
    return {session["id"]: session["state"] for session in listed}


async def windows(agent: Talk) -> dict[str, dict[str, object]]:
    return {window["name"]: window for window in (await agent.tool("window_list"))["windows"]}


async def test_a_window_is_deleted_when_its_time_is_over(live_engine: LiveEngine, tmp_path: Path) -> None:
    with served(live_engine, tmp_path / "cwm.db", "acme", **SOON) as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            for name, more in (("short", {"ttl_seconds": 1}), ("long", {"ttl_seconds": 3600}), ("ever", {})):
                session, _ = await agent.fill(words(100))
                await agent.tool("window_freeze", session_id=session, window_name=name, **more)

            async def gone() -> bool:
                return "short" not in await windows(agent)

            await until(gone)
            left = await windows(agent)
            assert set(left) == {"long", "ever"}
            assert "expires_at" in left["long"]
            assert "expires_at" not in left["ever"]
            assert (await refusal(agent, "window_thaw", window_name="short")).code == "CWM-2002"


async def test_an_idle_session_expires_and_can_still_be_frozen_and_deleted(
    live_engine: LiveEngine, tmp_path: Path
) -> None:
    with served(live_engine, tmp_path / "cwm.db", "acme", **SOON, CWM_SESSION_TTL_SECONDS="1") as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            session, ids = await agent.fill(words(100))

            async def expired() -> bool:
                return (await states(agent))[session] == "expired"

            await until(expired)
            assert (await refusal(agent, "session_generate", session_id=session, text="x")).code == "CWM-3002"
            await agent.tool("window_freeze", session_id=session, window_name="kept")
            assert (await states(agent))[session] == "expired"
            await agent.tool("session_delete", session_id=session)
            assert session not in await states(agent)
            thawed = await agent.tool("window_thaw", window_name="kept")
            assert thawed["token_count"] == len(ids)
            assert thawed["partial"] is False


async def test_an_expired_session_is_deleted_after_its_time(live_engine: LiveEngine, tmp_path: Path) -> None:
    with served(
        live_engine,
        tmp_path / "cwm.db",
        "acme",
        **SOON,
        CWM_SESSION_TTL_SECONDS="0.5",
        CWM_SESSION_KEPT_SECONDS="0.5",
    ) as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            session, _ = await agent.fill(words(100))

            async def gone() -> bool:
                return session not in await states(agent)

            await until(gone)
            answer = await refusal(agent, "window_status", session_id=session)
            assert answer.code == "CWM-2001"


async def test_sessions_are_kept_as_windows_where_that_is_wanted(
    live_engine: LiveEngine, tmp_path: Path
) -> None:
    more = {"CWM_SESSION_TTL_SECONDS": "1", "CWM_AUTO_FREEZE": "true"}
    with served(live_engine, tmp_path / "cwm.db", "acme", **SOON, **more) as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            session, ids = await agent.fill(words(100))

            async def kept() -> bool:
                found = await windows(agent)
                return any(window["durability"] == "durable" for window in found.values())

            await until(kept)
            (name,) = await windows(agent)
            assert name.startswith(f"expired_{session}")
            assert (await windows(agent))[name]["retention"] == "best_effort"
            assert (await states(agent))[session] == "frozen"
            assert (await agent.tool("window_thaw", window_name=name))["token_count"] == len(ids)


async def test_a_quota_refuses_what_it_cannot_hold_and_the_session_goes_on(
    agent: Talk, live_engine: LiveEngine, tmp_path: Path
) -> None:
    session, _ = await agent.fill(words(40))
    one_block = (await agent.tool("window_freeze", session_id=session, window_name="one-block"))[
        "total_size_bytes"
    ]
    quota = {"CWM_TENANT_QUOTA_GB": f"{6.5 * one_block / 2**30:.12f}"}
    with served(live_engine, tmp_path / "cwm.db", "acme", **quota) as gateway:
        async with talk(gateway.url, gateway.model) as limited:
            first, ids = await limited.fill(words(100))
            frozen = await limited.tool("window_freeze", session_id=first, window_name="first")
            assert frozen["block_count"] == 3
            second, _ = await limited.fill(words(170))
            answer = await refusal(limited, "window_freeze", session_id=second, window_name="second")
            assert answer.code == "CWM-4003"
            assert answer.context["needed_bytes"] == 8 * one_block
            assert (await states(limited))[second] == "active"
            turn = await limited.tool("session_generate", session_id=second, text="on", max_tokens=2)
            assert turn["success"]
            await limited.tool(
                "window_freeze", session_id=second, window_name="second", retention="best_effort"
            )
            await limited.tool("window_clone", source_window="first", target_window="twin")
            longer, _ = await limited.fill([*ids[:96], *words(60)])
            await limited.tool("window_freeze", session_id=longer, window_name="longer")
            assert set(await windows(limited)) == {"first", "second", "twin", "longer"}


async def test_a_gateway_that_stops_while_it_cannot_store_goes_on_when_it_is_back(
    live_engine: LiveEngine, tmp_path: Path
) -> None:
    database = tmp_path / "cwm.db"
    with served(live_engine, database, "acme") as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            session, ids = await agent.fill(words(200))
            with live_engine.held_down("coordinator"):
                answer = await refusal(agent, "window_freeze", session_id=session, window_name="refused")
                assert answer.code == "CWM-5001"
                assert answer.retryable
                assert (await states(agent))[session] == "active"
                await agent.tool("window_freeze", session_id=session, window_name="w", wait=False)
                assert (await windows(agent))["w"]["durability"] == "pending"
    with served(live_engine, database, "acme", **SOON) as gateway:
        async with talk(gateway.url, gateway.model) as agent:

            async def durable() -> bool:
                return (await windows(agent))["w"]["durability"] == "durable"

            await until(durable)
            assert set(await windows(agent)) == {"w"}
            assert (await agent.tool("window_thaw", window_name="w"))["token_count"] == len(ids)

            async def nothing_left() -> bool:
                done = await asyncio.to_thread(_reconcile, gateway.url)
                return done.returncode == 0 and json.loads(done.stdout) == {"steps": []}

            await until(nothing_left)


async def test_a_freeze_while_lmcache_is_away_is_refused_by_a_gateway_that_never_met_it(
    live_engine: LiveEngine, tmp_path: Path
) -> None:
    with live_engine.held_down("coordinator"), served(live_engine, tmp_path / "cwm.db", "acme") as gateway:
        async with talk(gateway.url, gateway.model) as agent:
            session, _ = await agent.fill(words(100))
            answer = await refusal(agent, "window_freeze", session_id=session, window_name="w")
            assert answer.code == "CWM-5001"
            assert (await states(agent))[session] == "active"


def _reconcile(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cwm", "reconcile", "--dry-run", "--json", "--url", url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
