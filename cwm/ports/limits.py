"""Counters for the limits on callers, shared by all replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cwm.domain.limits import Bucket, ConcurrencyLimit, Use


class RequestCounts(Protocol):
    """Counts requests in sliding windows, and tokens in windows that start with their first token.

    Every method raises CWM-4001 when the store is unavailable.
    """

    async def count(self, *buckets: Bucket) -> tuple[Bucket, float] | None:
        """Count a request, by its cost, against each bucket in turn, up to the first one without room, which does not count it.

        Returns that bucket and the seconds until it has room again; None when all had room.
        """

    async def used_up(self, bucket: Bucket) -> float | None:
        """Seconds until tokens are available again; None while some are left. Counts nothing."""

    async def spend(self, bucket: Bucket, tokens: int) -> None:
        """Count used tokens, also beyond the limit."""

    async def requests_in(self, bucket: Bucket) -> Use:
        """How much of the bucket's rate requests use now; the seconds until one more fits, 0 if it does. Counts nothing."""

    async def tokens_in(self, bucket: Bucket) -> Use:
        """How many tokens are spent in the window under way, and the seconds until it ends. Counts nothing."""


class RunningRequests(Protocol):
    """The requests running now. Every method but ``keep`` raises CWM-4001 when the store is unavailable."""

    async def begin(
        self, request: str, places: Sequence[ConcurrencyLimit], buckets: Sequence[Bucket] = ()
    ) -> ConcurrencyLimit | tuple[Bucket, float] | None:
        """Occupy a place in each of ``places``, or as many as its cost says, and count against ``buckets``; returns the first that is full, else None.

        A request without a place is not counted. A full bucket is returned as by :meth:`RequestCounts.count`, and the
        request occupies no place then. ``request`` is a unique id.
        """

    async def end(self, request: str, places: Sequence[ConcurrencyLimit]) -> None:
        """Give the places back."""

    async def count(self, place: ConcurrencyLimit) -> int:
        """The places that are occupied there now."""

    async def keep(self) -> None:
        """Renew the places of this process's requests, for ever. Those of a crashed process are given back."""
