"""Text on its way to a client that asked for progress, whatever the client does with it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import anyio
import pytest
from fastmcp import Client, Context, FastMCP

from cwm.domain.errors import EngineConnectionError
from cwm.transport.mcp.contract.progress import Progress

PIECES = [f"piece {n} " for n in range(50)]


async def say(context: Context) -> str:
    progress = Progress(context, len(PIECES))
    async with progress.notifications():
        for tokens, piece in enumerate(PIECES, start=1):
            await progress(piece, tokens)
            if tokens % 7 == 0:
                await asyncio.sleep(0)
    return "".join(PIECES)


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_client_hears_every_piece_once_in_order_and_before_the_answer(era: str) -> None:
    mcp: FastMCP[Any] = FastMCP()
    mcp.tool(say)
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with Client(mcp, mode=era) as client:
        result = await client.call_tool("say", progress_handler=hear)
    assert "".join(message or "" for _, _, message in heard) == result.data
    assert [p for p, _, _ in heard] == sorted({p for p, _, _ in heard})
    assert heard[-1][:2] == (len(PIECES), len(PIECES))


class ListeningContext:
    """A connection that takes its time."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, float, str]] = []
        self.asked = asyncio.Event()

    async def report_progress(self, progress: float, total: float, message: str) -> None:
        self.asked.set()
        for _ in range(5):
            await asyncio.sleep(0)
        self.heard.append((progress, total, message))


class DeafContext:
    """A connection that takes nothing, or is closed."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure

    async def report_progress(self, *_: object) -> None:
        if self.failure is not None:
            raise self.failure
        await asyncio.get_running_loop().create_future()


async def test_a_client_that_reads_nothing_does_not_hold_the_turn_up_and_can_leave() -> None:
    progress = Progress(cast("Context", DeafContext(None)), 3)
    done = asyncio.Event()

    async def turn() -> None:
        async with progress.notifications():
            for tokens in range(1, 4):
                await progress("text", tokens)
                await asyncio.sleep(0)
            done.set()

    caller = asyncio.create_task(turn())
    async with asyncio.timeout(5):
        await done.wait()
        caller.cancel()
        await asyncio.wait({caller})
    assert caller.cancelled()


async def test_a_turn_that_fails_has_told_what_it_had() -> None:
    context = ListeningContext()
    progress = Progress(cast("Context", context), 3)

    async def turn() -> None:
        async with progress.notifications():
            await progress("begun", 1)
            raise EngineConnectionError("The engine went away.")

    with pytest.raises(EngineConnectionError):
        await turn()
    assert context.heard == [(1, 3, "begun")]


async def test_pieces_that_come_while_one_is_told_are_told_together() -> None:
    context = ListeningContext()
    progress = Progress(cast("Context", context), 9)
    async with progress.notifications():
        await progress("a", 1)
        await asyncio.wait_for(context.asked.wait(), 5)
        for tokens, piece in enumerate("bcd", start=2):
            await progress(piece, tokens)
    assert context.heard == [(1, 9, "a"), (4, 9, "bcd")]


@pytest.mark.parametrize("failure", [anyio.BrokenResourceError(), anyio.ClosedResourceError()])
async def test_a_client_that_left_does_not_fail_the_turn(failure: Exception) -> None:
    progress = Progress(cast("Context", DeafContext(failure)), 1)
    async with progress.notifications():
        await progress("text", 1)
        await asyncio.sleep(0)
    assert not progress._texts
