"""What of their limits callers use now. Reading the counts counts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, TypeAlias

from cwm.domain.access import AccessScope
from cwm.domain.errors import CwmError
from cwm.domain.limits import Bucket, ConcurrencyLimit, Level, LimitRules, Rate, Use
from cwm.domain.principal import Principal
from cwm.services.access.limits import Limits
from cwm.services.access.storage import Storage

_NEARLY: Final = 0.8


class Measure(StrEnum):
    REQUESTS = "requests"
    LISTS = "lists"
    RUNNING = "running"
    """Requests at once."""
    STREAMS = "streams"
    """Notification streams open on one gateway: the one that is asked."""
    TOKENS = "tokens"
    STORED = "stored"
    """Bytes of what was said."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One limit, and what of it is used.

    ``most`` is None where there is no limit, ``rate`` for what is counted at once. ``use`` is None where there is no limit,
    where each session has a count of its own, and while the store of counts does not answer.
    """

    measure: Measure
    level: Level
    most: int | None = None
    rate: Rate | None = None
    use: Use | None = None

    @property
    def is_near(self) -> bool:
        return self.most is not None and self.use is not None and self.use.amount >= _NEARLY * self.most


_Read: TypeAlias = Callable[[], Awaitable[Use]]


@dataclass(frozen=True, slots=True)
class Usage:
    limits: Limits
    storage: Storage | None = None

    async def __call__(self, principal: Principal) -> list[Standing]:
        """The limits that apply to the principal and, for who has the scope admin, to its tenant."""
        return list(await asyncio.gather(*(self._stands(each, read) for each, read in self._all(principal))))

    async def near(self, principal: Principal) -> list[Standing]:
        """The token budgets and the storage of those limits of which 80 % or more are used."""
        budgets = (*self._tokens(principal, self.limits.rules), *self._stored(principal))
        standings = await asyncio.gather(*(self._stands(each, read) for each, read in budgets))
        return [each for each in standings if each.is_near]

    def _all(self, principal: Principal) -> Iterator[tuple[Standing, _Read | None]]:
        rules = self.limits.rules
        for level in _levels(principal):
            buckets = [each for each in rules.buckets(principal, "", None) if each.level is level]
            if not buckets:
                yield Standing(Measure.REQUESTS, level), None
            for bucket in buckets:
                is_one_count = level is not Level.SESSION
                read = self._requests(bucket) if is_one_count else None
                yield Standing(Measure.REQUESTS, level, bucket.rate.amount, bucket.rate), read
        lists = rules.list_buckets(principal)
        if not lists:
            yield Standing(Measure.LISTS, Level.PRINCIPAL), None
        for bucket in lists:
            yield (
                Standing(Measure.LISTS, Level.PRINCIPAL, bucket.rate.amount, bucket.rate),
                self._requests(bucket),
            )
        places = {each.level: each for each in rules.places(principal)}
        for level in _counted(principal):
            place = places.get(level)
            if place is None:
                yield Standing(Measure.RUNNING, level), None
            else:
                yield Standing(Measure.RUNNING, level, place.most), self._running(place)
        streams = rules.stream_place(principal)
        if streams is None:
            yield Standing(Measure.STREAMS, Level.PRINCIPAL), None
        else:
            use = Use(self.limits.streams(streams))
            yield Standing(Measure.STREAMS, Level.PRINCIPAL, streams.most, use=use), None
        yield from self._tokens(principal, rules)
        yield from self._stored(principal)

    def _tokens(self, principal: Principal, rules: LimitRules) -> Iterator[tuple[Standing, _Read | None]]:
        for level in _counted(principal):
            budgets = [each for each in rules.token_buckets(principal) if each.level is level]
            if not budgets:
                yield Standing(Measure.TOKENS, level), None
            for bucket in budgets:
                yield Standing(Measure.TOKENS, level, bucket.rate.amount, bucket.rate), self._spent(bucket)

    def _stored(self, principal: Principal) -> Iterator[tuple[Standing, _Read | None]]:
        storage = self.storage
        if storage is None:
            return
        for level, most in storage.quotas():
            if level in _counted(principal):
                read = None if most is None else partial(_used, storage, principal, level)
                yield Standing(Measure.STORED, level, most), read

    def _requests(self, bucket: Bucket) -> _Read:
        return lambda: self.limits.counts.requests_in(bucket)

    def _spent(self, bucket: Bucket) -> _Read:
        return lambda: self.limits.counts.tokens_in(bucket)

    def _running(self, place: ConcurrencyLimit) -> _Read:
        async def read() -> Use:
            return Use(await self.limits.running.count(place))

        return read

    async def _stands(self, standing: Standing, reading: _Read | None) -> Standing:
        if reading is None:
            return standing
        use = None
        if standing.measure is Measure.STORED:
            # In the registry, not in the store of counts.
            with suppress(CwmError):
                use = await reading()
        else:
            use = await self.limits.store.look(reading)
        return Standing(standing.measure, standing.level, standing.most, standing.rate, use)


async def _used(storage: Storage, principal: Principal, level: Level) -> Use:
    return Use((await storage.used(principal.tenant, principal.subject))[level])


def _levels(principal: Principal) -> list[Level]:
    return [Level.SESSION, *_counted(principal)]


def _counted(principal: Principal) -> list[Level]:
    """Without the scope admin nothing is told of what the tenant's others use."""
    return [Level.PRINCIPAL, *([Level.TENANT] if AccessScope.ADMIN in principal.scopes else [])]
