"""Progress notifications with the text of a turn as the model generates it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
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
        self._news = asyncio.Event()
        self._ended = False

    async def __call__(self, text: str, tokens: int) -> None:
        self._texts.append(text)
        self._tokens = tokens
        self._news.set()

    @asynccontextmanager
    async def told(self) -> AsyncIterator[None]:
        """Send notifications while the body runs. Exits once all text is sent, or at once if cancelled."""
        telling = asyncio.create_task(self._tell_all())
        try:
            yield
        except asyncio.CancelledError:
            telling.cancel()
            raise
        finally:
            self._ended = True
            self._news.set()
            if not telling.cancelling():
                await telling

    async def _tell_all(self) -> None:
        while not self._ended:
            await self._news.wait()
            self._news.clear()
            await self._tell()
        await self._tell()

    async def _tell(self) -> None:
        if not self._texts:
            return
        text = "".join(self._texts)
        self._texts.clear()
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._context.report_progress(self._tokens, self._max_tokens, text)
