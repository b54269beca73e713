"""Renaming a window: the same window, its blocks and what came from it, under another name."""

from __future__ import annotations

import asyncio

import pytest

from cwm.domain.errors import (
    InvalidWindowNameError,
    StorageReadError,
    WindowAlreadyExistsError,
    WindowInUseError,
    WindowNotFoundError,
)
from tests.services.replicas_of import ANN, BOB
from tests.services.windows_of import Gateway


async def test_a_renamed_window_thaws_by_its_new_name_and_moves_no_block(cwm: Gateway) -> None:
    window = await cwm.window(tags=["a"])
    stored, pins = cwm.kv_tier.stored(window.cache_salt), await cwm.kv_tier.pins(window.cache_salt)
    renamed = await cwm.rename(BOB, "w1", "w2")
    assert (renamed.name, renamed.owner, renamed.tags) == ("w2", ANN.subject, ("a",))
    assert cwm.kv_tier.stored(window.cache_salt) == stored
    assert await cwm.kv_tier.pins(window.cache_salt) == pins
    assert (await cwm.events())[0] == ("window_rename", "success")
    with pytest.raises(WindowNotFoundError):
        await cwm.thaw(ANN, "w1", "s2")
    cwm.engine.restart()
    assert not (await cwm.thaw(ANN, "w2", "s2")).partial
    with pytest.raises(WindowInUseError, match="s2"):
        await cwm.delete(ANN, "w2")
    await cwm.delete(ANN, "w2", force=True)
    assert await cwm.at_rest()


async def test_what_came_from_a_window_says_its_new_name(cwm: Gateway) -> None:
    await cwm.window()
    await cwm.clone(ANN, "w1", "copy")
    await cwm.thaw(ANN, "w1", "s2")
    await cwm.rename(ANN, "w1", "w2")
    await cwm.freeze(ANN, "s2", "heir")
    copy, heir = [await cwm.registry.window("acme", name) for name in ("copy", "heir")]
    assert copy is not None
    assert heir is not None
    assert (copy.parent_window, heir.parent_window) == ("w2", "w2")
    assert (await cwm.registry.dependents("acme", "w2")).windows == ("copy", "heir")


async def test_a_window_that_is_thawed_meanwhile_keeps_its_name(cwm: Gateway) -> None:
    await cwm.window()
    cwm.engine.gate = asyncio.Event()
    cwm.engine.asked.clear()
    thawing = asyncio.create_task(cwm.thaw(ANN, "w1", "s2"))
    await cwm.engine.asked.wait()
    with pytest.raises(StorageReadError, match="thawed"):
        await cwm.rename(ANN, "w1", "w2")
    cwm.engine.gate.set()
    await thawing
    await cwm.rename(ANN, "w1", "w2")
    session = await cwm.registry.session("acme", "s2")
    assert session is not None
    assert session.thawed_from == "w2"


async def test_what_cannot_be_renamed_is_refused(cwm: Gateway) -> None:
    await cwm.window()
    await cwm.clone(ANN, "w1", "w2")
    with pytest.raises(WindowNotFoundError):
        await cwm.rename(ANN, "nobody", "w3")
    with pytest.raises(WindowAlreadyExistsError):
        await cwm.rename(ANN, "w1", "w2")
    with pytest.raises(InvalidWindowNameError):
        await cwm.rename(ANN, "w1", "no name")
    assert await cwm.registry.window("acme", "w1") is not None
