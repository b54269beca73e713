"""Limits: decides whether a request may be answered now, and whether tokens are left for a turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar
from uuid import uuid4

from cwm.background import BackgroundTasks
from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.errors import (
    ConcurrencyLimitError,
    CwmError,
    InvalidParameterError,
    LimitError,
    RateLimitError,
    StorageReadError,
    TokenBudgetError,
)
from cwm.domain.limits import NO_TOOL, Bucket, ConcurrencyLimit, LimitRules, ToolRates
from cwm.domain.principal import Principal
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.ports.limits import RequestCounts, RunningRequests
from cwm.ports.meter import Meter
from cwm.services.access.body_room import BodyRoom, body_key

T = TypeVar("T")
Release: TypeAlias = Callable[[], None]
"""Releases the concurrency places of an answered request; a second call does nothing."""

_PATIENCE_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = 1.0
_RECORD_AGAIN_SECONDS: Final = 60.0
_MOST_RECORDED: Final = 1_000
_WHEN_A_PLACE_IS_FREE_SECONDS: Final = 1
_WHEN_A_STREAM_HAS_ENDED_SECONDS: Final = 15
_READS: Final = "reads, lists and subscriptions"


@dataclass(slots=True)
class CountStore:
    """Asks the store of counts, for at most 0.5 s. For one second after a failure it does not ask again.

    Until it answers every request is allowed, or with ``refuse`` none.
    """

    refuse: bool
    meter: Meter
    clock: Clock
    _away_until: float | None = None

    @property
    def away(self) -> bool:
        return self._away_until is not None

    async def ask(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """The store's answer, or None if it does not answer; with ``refuse`` CWM-4002 instead of None."""
        has_answered, answer = await self._answer(work)
        if has_answered:
            return answer
        self.meter.event("limits_not_counted")
        if self.refuse:
            raise StorageReadError(
                "The counts of requests cannot be reached, and without them no request is allowed."
            )
        return None

    async def look(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """The store's answer, or None if it does not answer. No request depends on it."""
        return (await self._answer(work))[1]

    async def _answer(self, work: Callable[[], Awaitable[T]]) -> tuple[bool, T | None]:
        if self._away_until is None or self.clock.monotonic() >= self._away_until:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    answer = await work()
            except (CwmError, TimeoutError):
                self._lost()
            else:
                self._found()
                return True, answer
        return False, None

    def _lost(self) -> None:
        if not self.away:
            self.meter.event("limits_store_away")
        self._away_until = self.clock.monotonic() + _AGAIN_SECONDS

    def _found(self) -> None:
        if self.away:
            self.meter.event("limits_store_back")
        self._away_until = None


@dataclass(slots=True)
class Limits:
    """Applies rate, concurrency and token limits. ``rules`` may be replaced at runtime."""

    rules: LimitRules
    counts: RequestCounts
    running: RunningRequests
    store: CountStore
    audit: AuditLog
    meter: Meter
    clock: Clock
    bodies: BodyRoom = field(default_factory=BodyRoom)
    _ending: BackgroundTasks = field(default_factory=BackgroundTasks)
    _recorded_at: dict[str, float] = field(default_factory=dict)
    _listening: Counter[str] = field(default_factory=Counter)

    async def admit(
        self,
        principal: Principal,
        session: str | None,
        tool: str | None = None,
        own: ToolRates = NO_TOOL,
        *,
        cost: int = 1,
        counted: int = 0,
    ) -> Release:
        """Count a request and take its places, or refuse it: CWM-7001, 7002. A refused request does not count at wider levels.

        ``session``: any name that identifies one of the principal's sessions. ``own``: the rates of the tool's policy.
        ``cost``: the number of requests that it counts as, beside those that are ``counted`` already. CWM-1003 if they can never fit.
        """
        places = self.rules.places(principal, cost)
        buckets = tuple(self.rules.buckets(principal, session, tool, own, cost))
        if cost + counted > 1:
            _require_possible(cost + counted, places, buckets)
        return await self._admit(principal, places, buckets, tool)

    async def admit_rest(self, principal: Principal, session: str | None, cost: int) -> Release:
        """Count what a request costs that was admitted as one before it was read; as :meth:`admit`."""
        return _nothing if cost == 1 else await self.admit(principal, session, cost=cost - 1, counted=1)

    async def admit_list(self, principal: Principal) -> Release:
        """Count a request that reads, and take its places, or refuse it: CWM-7001, 7002."""
        places = self.rules.places(principal)
        return await self._admit(principal, places, self.rules.list_buckets(principal), None, _READS)

    async def count(
        self, principal: Principal, session: str | None, tool: str | None, own: ToolRates = NO_TOOL
    ) -> None:
        """Count a request that has its places already, or refuse it: CWM-7001."""
        buckets = tuple(self.rules.buckets(principal, session, tool, own))
        await self._admit(principal, (), buckets, tool)

    async def count_list(self, principal: Principal) -> None:
        """Count a request that lasts as long as its caller listens, or that takes no place, or refuse it: CWM-7001."""
        await self._admit(principal, (), self.rules.list_buckets(principal), None, _READS)

    async def require_room(self, principal: Principal | None, size: int) -> None:
        """Refuse a request of whose body this process has no room for ``size`` more bytes: CWM-7002. None is everybody without credentials."""
        key = body_key(principal)
        if (full := self.bodies.full(key, size)) is None:
            return
        error = ConcurrencyLimitError(
            f"Concurrency limit exceeded: {full.most} bytes of request bodies at once {full.whose}.",
            retry_after=_WHEN_A_PLACE_IS_FREE_SECONDS,
            limit=full.most,
            setting=full.setting,
        )
        await self._refuse(principal, f"{full.setting} {key}", error)

    @asynccontextmanager
    async def listening(self, principal: Principal) -> AsyncIterator[None]:
        """Count a notification stream on this gateway during the body, or refuse it: CWM-7002."""
        place = self.rules.stream_place(principal)
        if place is None:
            yield
            return
        if self._listening[place.key] >= place.most:
            streams = f"open streams for each {place.level} and gateway"
            error = _too_many(place, streams, _WHEN_A_STREAM_HAS_ENDED_SECONDS)
            await self._refuse(principal, place.key, error)
        self._listening[place.key] += 1
        try:
            yield
        finally:
            self._listening[place.key] -= 1
            if not self._listening[place.key]:
                del self._listening[place.key]

    def streams(self, place: ConcurrencyLimit) -> int:
        """The notification streams that are open there, on this gateway."""
        return self._listening[place.key]

    @property
    def counts_tokens(self) -> bool:
        """Whether there are limits on the tokens of turns."""
        return bool(self.rules.principal_tokens or self.rules.tenant_tokens)

    async def require_tokens(self, principal: Principal) -> None:
        """Refuse a turn if no tokens are left: CWM-7003. A turn that has begun is never cut short."""
        for bucket in self.rules.token_buckets(principal):
            wait = await self.store.ask(lambda bucket=bucket: self.counts.used_up(bucket))  # type: ignore[misc]
            if wait is not None:
                await self._refuse(principal, bucket.key, _used_up(bucket, wait))

    async def spend(self, principal: Principal, tokens: int) -> None:
        """Count the tokens of a turn. Never refuses, as the turn is done."""
        for bucket in self.rules.token_buckets(principal) if tokens else ():
            with suppress(CwmError):
                await self.store.ask(lambda bucket=bucket: self.counts.spend(bucket, tokens))  # type: ignore[misc]

    async def settle(self) -> None:
        """Wait until the released places are free."""
        await self._ending.settled()

    async def _admit(
        self,
        principal: Principal,
        places: tuple[ConcurrencyLimit, ...],
        buckets: tuple[Bucket, ...],
        tool: str | None,
        of: str = "",
    ) -> Release:
        if places:
            full, release = await self._begin(places, buckets)
        else:
            full, release = await self._count(buckets), _nothing
        if isinstance(full, ConcurrencyLimit):
            requests = f"requests at once for each {full.level}"
            await self._refuse(principal, full.key, _too_many(full, requests, _WHEN_A_PLACE_IS_FREE_SECONDS))
        elif full is not None:
            bucket, wait = full
            await self._refuse(principal, bucket.key, _too_often(bucket, wait, tool, of))
        return release

    async def _count(self, buckets: tuple[Bucket, ...]) -> tuple[Bucket, float] | None:
        return await self.store.ask(lambda: self.counts.count(*buckets)) if buckets else None

    async def _begin(
        self, places: tuple[ConcurrencyLimit, ...], buckets: tuple[Bucket, ...]
    ) -> tuple[ConcurrencyLimit | tuple[Bucket, float] | None, Release]:
        request = uuid4().hex
        holds_places = True
        try:
            full = await self.store.ask(lambda: self.running.begin(request, places, buckets))
        except BaseException:
            # The store may have counted it although its answer was lost.
            self._ending.start(self._end(request, places))
            raise

        def release() -> None:
            nonlocal holds_places
            if holds_places:
                holds_places = False
                self._ending.start(self._end(request, places))

        return full, release

    async def _end(self, request: str, places: tuple[ConcurrencyLimit, ...]) -> None:
        """Release the places in the store; if it does not answer they expire by themselves."""
        with suppress(CwmError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self.running.end(request, places)

    async def _refuse(self, principal: Principal | None, key: str, error: LimitError) -> None:
        self.meter.event(f"limited_{error.code.lower().replace('-', '_')}")
        if principal is not None:
            await self._record(principal, key, error)
        raise error

    async def _record(self, principal: Principal, key: str, error: LimitError) -> None:
        """Record a refusal once a minute for the same limit: a refused client may ask any number of times."""
        now = self.clock.monotonic()
        if now - self._recorded_at.get(key, -_RECORD_AGAIN_SECONDS) < _RECORD_AGAIN_SECONDS:
            return
        if len(self._recorded_at) >= _MOST_RECORDED:
            self._recorded_at.clear()
        self._recorded_at[key] = now
        event = AuditEvent(
            timestamp=self.clock.now(),
            tenant=principal.tenant,
            subject=principal.subject,
            event="limit.exceeded",
            outcome=error.code,
            severity=Severity.WARNING,
            details=dict(error.context),
        )
        with suppress(CwmError):
            await self.audit.record(event)


def _require_possible(cost: int, places: tuple[ConcurrencyLimit, ...], buckets: tuple[Bucket, ...]) -> None:
    limits = [(place.most, place.level, f"{place.most} at once") for place in places]
    limits += [(bucket.rate.amount, bucket.level, str(bucket.rate)) for bucket in buckets]
    for most, level, limit_text in limits:
        if cost > most:
            raise InvalidParameterError(
                f"This request counts as {cost} requests, its prompts times its answers; the limit of each {level} "
                f"is {limit_text}. Ask for fewer in one request.",
                field="n",
                requests=cost,
                limit=most,
                level=level.value,
            )


def _nothing() -> None:
    """The release of a request that took no places."""


def _too_often(bucket: Bucket, wait: float, tool: str | None, of: str = "") -> LimitError:
    context = {"limit": str(bucket.rate), "level": bucket.level.value}
    if tool is not None:
        context["tool"] = tool[:128]
    return RateLimitError(
        f"Rate limit exceeded: {bucket.rate}{of and f' {of}'} for each {bucket.level}.",
        retry_after=wait,
        **context,
    )


def _too_many(place: ConcurrencyLimit, sentence: str, retry_after: float) -> LimitError:
    return ConcurrencyLimitError(
        f"Concurrency limit exceeded: {place.most} {sentence}.",
        retry_after=retry_after,
        limit=place.most,
        level=place.level.value,
    )


def _used_up(bucket: Bucket, wait: float) -> LimitError:
    return TokenBudgetError(
        f"Token budget exceeded: {bucket.rate} tokens for each {bucket.level}.",
        retry_after=wait,
        limit=str(bucket.rate),
        level=bucket.level.value,
    )
