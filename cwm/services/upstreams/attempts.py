"""Per-session listings of upstreams that need the caller's credentials, including while they are down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from cwm.background import cancel_and_wait
from cwm.domain.backoff import Backoff
from cwm.domain.upstream import OfferKind
from cwm.ports.upstream import (
    UpstreamAwayError,
    UpstreamDeniedError,
    UpstreamError,
    UpstreamExpiredError,
    UpstreamLostError,
)
from cwm.services.upstreams.link import Link, LinkState, Offers

_MOMENT_SECONDS: Final = 0.5

Learn = Callable[[], Awaitable[Offers]]


@dataclass(slots=True)
class _Failure:
    """A failed attempt. ``credentials`` is a hash of those it used: others may succeed."""

    credentials: int
    reason: str
    again_at: float
    backoff: Backoff


class Attempts:
    """One agent session's attempts to list an upstream's offers.

    There is one attempt at a time for each kind and credentials; it continues when no caller waits any more. Credentials
    are not kept: each attempt uses those of the caller who started it, and none runs without a caller. ``back`` is called
    when an attempt succeeds after a failure was reported.
    """

    def __init__(self, link: Link, back: Callable[[OfferKind], None]) -> None:
        self._link = link
        self._back = back
        self._attempts: dict[tuple[OfferKind, int], asyncio.Task[Offers | str]] = {}
        self._failures: dict[OfferKind, _Failure] = {}
        self._missed: set[OfferKind] = set()

    async def offers(
        self, kind: OfferKind, authorization: str | None, learn: Learn, *, hurried: bool
    ) -> Offers | str:
        """The result of ``learn``, or the reason why there is none. Raises what ``learn`` raises, except UpstreamError.

        After a failure the upstream is not asked again for a while, at most 30 s. A ``hurried`` caller waits at most 0.5 s
        for an upstream that is away or failed before; others wait until the attempt ends, after ``connect_seconds`` at
        the latest.
        """
        credentials = hash(authorization)
        failure = self._failures.get(kind)
        if failure is not None and failure.credentials != credentials:
            failure = None
        attempt = self._attempts.get((kind, credentials))
        if attempt is None:
            if failure is not None and self._link.clock.monotonic() < failure.again_at:
                return failure.reason
            attempt = self._begin(kind, credentials, learn)
        doubtful = failure is not None or self._link.state is LinkState.AWAY
        await asyncio.wait({attempt}, timeout=_MOMENT_SECONDS if hurried and doubtful else None)
        if attempt.cancelled():
            return "the request was cancelled"
        known_reason = self._link.reason if failure is None else failure.reason
        result = attempt.result() if attempt.done() else known_reason or "it did not answer in time"
        if isinstance(result, str):
            self._missed.add(kind)
        return result

    async def stop(self) -> None:
        """Cancel all attempts and wait for their end."""
        attempts, self._attempts = list(self._attempts.values()), {}
        await cancel_and_wait(*attempts)

    def _begin(self, kind: OfferKind, credentials: int, learn: Learn) -> asyncio.Task[Offers | str]:
        key = kind, credentials
        task = self._attempts[key] = asyncio.create_task(self._try(kind, credentials, learn))

        def ended(_: object) -> None:
            if self._attempts.get(key) is task:
                del self._attempts[key]

        task.add_done_callback(ended)
        return task

    async def _try(self, kind: OfferKind, credentials: int, learn: Learn) -> Offers | str:
        try:
            async with asyncio.timeout(self._link.spec.connect_seconds):
                try:
                    result = await learn()
                except UpstreamExpiredError:
                    result = await learn()
        except UpstreamError as error:
            unreachable = isinstance(error, UpstreamAwayError | UpstreamLostError)
            return self._record_failure(
                kind,
                credentials,
                error.reason,
                unreachable=unreachable and not isinstance(error, UpstreamDeniedError),
            )
        except TimeoutError:
            return self._record_failure(kind, credentials, "it did not answer in time", unreachable=True)
        self._link.reached()
        self._failures.pop(kind, None)
        if kind in self._missed:
            self._missed.discard(kind)
            self._back(kind)
        return result

    def _record_failure(self, kind: OfferKind, credentials: int, reason: str, *, unreachable: bool) -> str:
        previous = self._failures.get(kind)
        backoff = (
            previous.backoff if previous is not None and previous.credentials == credentials else Backoff()
        )
        again_at = self._link.clock.monotonic() + backoff.pause_seconds()
        self._failures[kind] = _Failure(credentials, reason, again_at, backoff)
        if unreachable:
            self._link.missed(reason)
        return reason
