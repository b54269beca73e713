"""What is counted of every caller, the same on every replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cwm.domain.limits import Bucket, Place


class RequestCounts(Protocol):
    """Counts requests in sliding windows, and tokens in windows that begin with their first one.

    Every method raises CWM-4001 when the store is away.
    """

    async def count(self, *buckets: Bucket) -> tuple[Bucket, float] | None:
        """Count one request against each in turn, up to the first that has no room, which does not count it either.

        That one, and the seconds until there is room in it.
        """

    async def used_up(self, bucket: Bucket) -> float | None:
        """Seconds until there are tokens again; None while some are left. Counts nothing."""

    async def spend(self, bucket: Bucket, tokens: int) -> None:
        """Count tokens, also more than are left."""


class RunningRequests(Protocol):
    """Which requests are being answered now. Every method but ``keep`` raises CWM-4001 when the store is away."""

    async def begin(
        self, request: str, places: Sequence[Place], buckets: Sequence[Bucket] = ()
    ) -> Place | tuple[Bucket, float] | None:
        """Take one of each of ``places`` and count against ``buckets``: the first that is full, or None.

        Without a place nothing is counted. A bucket that is full comes as from :meth:`RequestCounts.count`, and no
        place is taken then. ``request`` is unique.
        """

    async def end(self, request: str, places: Sequence[Place]) -> None:
        """Give them back."""

    async def keep(self) -> None:
        """Keep the places of this process's requests, for ever; those of a process that died are given back."""
