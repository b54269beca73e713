"""Progress notifications: the text of a turn as the model generates it, the steps of a long operation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from fastmcp import Context


class Progress:
    """Buffers a turn's text for its client, so that a slow or disconnected client never delays the turn.

    Each notification has the number of new tokens, the most there can be, and the text since the last
    notification.
    """

    def __init__(self, context: Context, max_tokens: int) -> None:
        self._context = context
        self._max_tokens = max_tokens
        self._texts: list[str] = []
        self._tokens = 0
        self._new_text = asyncio.Event()
        self._ended = False

    async def __call__(self, text: str, tokens: int) -> None:
        self._texts.append(text)
        self._tokens = tokens
        self._new_text.set()

    @asynccontextmanager
    async def notifications(self) -> AsyncIterator[None]:
        """Send notifications while the body runs. Exits once all text is sent, or at once if cancelled."""
        sender = asyncio.create_task(self._send_all())
        try:
            yield
        except asyncio.CancelledError:
            sender.cancel()
            raise
        finally:
            self._ended = True
            self._new_text.set()
            if not sender.cancelling():
                await sender

    async def _send_all(self) -> None:
        while not self._ended:
            await self._new_text.wait()
            self._new_text.clear()
            await self._send()
        await self._send()

    async def _send(self) -> None:
        if not self._texts:
            return
        text = "".join(self._texts)
        self._texts.clear()
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._context.report_progress(self._tokens, self._max_tokens, text)


def steps(context: Context) -> Callable[[str], Awaitable[None]]:
    """Reports each step of a long operation by its message; a client that has left hears nothing."""
    count = itertools.count(1)

    async def report(message: str) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await context.report_progress(next(count), None, message)

    return report
