"""Responses whose decoded size is bounded, whatever their encoding: 300 KB of gzip can be 300 MB of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import httpx2

_BYTES_AT_ONCE: Final = 2**20


class TooLargeError(httpx2.TransportError):
    """The decoded body has more bytes than allowed."""


async def read_bounded(response: httpx2.Response, most: int) -> None:
    """Read the body. Raises TooLargeError, after closing, as soon as it is certain to have more than ``most`` bytes."""
    try:
        if _announced(response) > most:
            raise TooLargeError("the body is too large")
        if "content-encoding" in response.headers or "content-length" not in response.headers:
            decode(response, most)
        await response.aread()
    except BaseException:
        await response.aclose()
        raise


def decode(response: httpx2.Response, most: int | None = None) -> None:
    """Decode the stream in steps between which other work runs; above ``most`` bytes it raises TooLargeError."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    raw = httpx2.Response(response.status_code, headers=response.headers, stream=response.stream)
    response.stream = _Decoded(raw, most)
    for name in ("content-encoding", "content-length"):
        response.headers.pop(name, None)


class _Decoded(httpx2.AsyncByteStream):
    def __init__(self, raw: httpx2.Response, most: int | None) -> None:
        self._raw = raw
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, pause_at = 0, _BYTES_AT_ONCE
        async for piece in self._raw.aiter_bytes():
            size += len(piece)
            if self._most is not None and size > self._most:
                raise TooLargeError("the body is too large")
            yield piece
            if size >= pause_at:
                pause_at = size + _BYTES_AT_ONCE
                await asyncio.sleep(0)

    async def aclose(self) -> None:
        await self._raw.aclose()


def _announced(response: httpx2.Response) -> int:
    length = response.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0
