"""Repeats requests that a gateway cannot answer now."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from cwm.domain.backoff import Backoff

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 60.0

T = TypeVar("T")


class RetryableError(Exception):
    """``retryable``: the same request may succeed later, and was not carried out. ``retry_after``: seconds, if told."""

    retryable: bool = False
    retry_after: float | None = None


async def repeated(
    attempt: Callable[[], Awaitable[T]],
    retries: int,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """The result of ``attempt``, which is repeated up to ``retries`` times after 1 s, doubling to 60 s.

    A longer time that the gateway asks for is waited, too, unless it is over 60 s: then the error is raised at once.
    """
    backoff = Backoff(FIRST_SECONDS, LONGEST_SECONDS)
    while True:
        try:
            return await attempt()
        except RetryableError as failed:
            seconds = max(backoff.pause_seconds(), failed.retry_after or 0.0)
            if not retries or not failed.retryable or seconds > LONGEST_SECONDS:
                raise
            print(f"{failed} Trying again in {math.ceil(seconds)} s.", file=sys.stderr)
        retries -= 1
        await pause(seconds)


def seconds_of(retry_after: str | None) -> float | None:
    """The value of a ``Retry-After`` header, a number of seconds or a date; None if there is none that can be read."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
