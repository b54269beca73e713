"""A gateway that is killed between any two steps loses nothing, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cwm.domain.session import SessionState
from cwm.domain.window import Retention
from tests.live.crasher import Crasher, crasher
from tests.live.engine import LiveEngine
from tests.live.house import AGENT, House, house
from tests.live.talk import words

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def killed() -> Iterator[Crasher]:
    with crasher() as process:
        yield process


@pytest.fixture
async def home(live_engine: LiveEngine, tmp_path: Path) -> AsyncIterator[House]:
    async with house(live_engine, tmp_path) as opened:
        yield opened


async def steps_of(killed: Crasher, home: House, operation: str, *arguments: Any) -> list[str]:
    """The steps of an operation that nobody kills."""
    whole = killed.run(home.environ, operation, *arguments)
    assert whole["finished"], whole["error"]
    return list(whole["steps"])


def kill(killed: Crasher, home: House, step: int, operation: str, *arguments: Any) -> None:
    """A step that is not reached, as polls may take another course, is an operation that finished."""
    ended = killed.run(home.environ, operation, *arguments, die_after=step)
    assert ended["killed"] or ended["finished"], ended["error"]


async def test_a_freeze_killed_at_any_step_is_whole_or_never_was(killed: Crasher, home: House) -> None:
    kept, kept_ids = await home.window()
    session, _ = await home.session()
    steps = await steps_of(killed, home, "freeze", session, "unharmed")
    assert {"registry.begin_freeze", "lmcache.pin", "vllm.complete", "registry.finish_freeze"} <= set(steps)
    for step in range(1, len(steps) + 1):
        session, ids = await home.session([*kept_ids, *words(50)])
        kill(killed, home, step, "freeze", session, f"frozen-{step}")
        await home.reconciled()
        await home.agree()
        window = await home.parts.base.registry.window("acme", f"frozen-{step}")
        record = await home.parts.base.registry.session("acme", session)
        assert record is not None
        assert record.state is (SessionState.ACTIVE if window is None else SessionState.FROZEN)
        assert await home.parts.base.registry.session_tokens("acme", session) == tuple(ids)
    assert await home.parts.base.registry.window("acme", kept) is not None


async def test_a_clone_killed_at_any_step_is_whole_or_never_was(killed: Crasher, home: House) -> None:
    source, _ = await home.window()
    steps = await steps_of(killed, home, "clone", source, "unharmed")
    assert {"registry.add_clone", "lmcache.pin", "registry.end_intent"} <= set(steps)
    for step in range(1, len(steps) + 1):
        kill(killed, home, step, "clone", source, f"clone-{step}")
        await home.reconciled()
        await home.agree()
    names = {window.name for window in await home.windows()}
    assert {source, "unharmed", f"clone-{len(steps)}"} <= names


async def test_a_thaw_killed_at_any_step_leaves_a_session_or_nothing(killed: Crasher, home: House) -> None:
    window, ids = await home.window()
    steps = await steps_of(killed, home, "thaw", window, "unharmed")
    assert {"registry.begin_thaw", "lmcache.prefetch", "vllm.complete", "registry.add_session"} <= set(steps)
    for step in range(1, len(steps) + 1):
        kill(killed, home, step, "thaw", window, f"thawed-{step}")
        await home.reconciled()
        await home.agree()
        session = await home.parts.base.registry.session("acme", f"thawed-{step}")
        if session is not None:
            assert session.state is SessionState.THAWED
            assert await home.parts.base.registry.session_tokens("acme", session.id) == tuple(ids)
    assert await home.parts.base.registry.session("acme", f"thawed-{len(steps)}") is not None
    again = await home.parts.services.thaw(AGENT, window)
    assert not again.partial


async def test_a_delete_killed_at_any_step_deletes_all_of_it_or_nothing(killed: Crasher, home: House) -> None:
    base = words(128)
    kept, _ = await home.window([*base, *words(40)])
    going, _ = await home.window([*base, *words(80)])
    steps = await steps_of(killed, home, "delete", going)
    assert {"registry.remove_window", "lmcache.unpin", "lmcache.delete", "registry.end_intent"} <= set(steps)
    for step in range(1, len(steps) + 1):
        going, _ = await home.window([*base, *words(80)])
        shared = {chunk.hash for chunk in await home.parts.base.registry.chunks("acme", kept)}
        own = [c.hash for c in await home.parts.base.registry.chunks("acme", going) if c.hash not in shared]
        assert own
        kill(killed, home, step, "delete", going)
        await home.reconciled()
        await home.agree()
        if await home.parts.base.registry.window("acme", going) is None:
            assert await home.stored(own) == 0
    assert await home.parts.base.registry.window("acme", kept) is not None


async def test_a_window_that_is_not_guaranteed_has_no_pins(home: House) -> None:
    name, _ = await home.window(retention=Retention.BEST_EFFORT)
    window = await home.parts.base.registry.window("acme", name)
    assert window is not None
    assert await home.parts.engine_side.kv_tier.pins(window.cache_salt) == {}
    await home.reconciled()
    await home.agree()
