"""Limits per caller: requests in a period, requests at once, and tokens."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cwm.domain.principal import Principal

_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_RATE: Final = re.compile(r"([1-9][0-9]{0,14})\s*/\s*(second|minute|hour|day)")
NONE: Final = "none"


class Level(StrEnum):
    """Which requests are counted together."""

    SESSION = "session"
    """An agent session, an MCP session or a ``/v1`` session; for a request without one, the principal's own bucket."""
    PRINCIPAL = "principal"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Rate:
    """``amount`` units per ``seconds`` seconds."""

    amount: int
    seconds: int

    def __str__(self) -> str:
        unit = next(unit for unit, seconds in _SECONDS.items() if seconds == self.seconds)
        return f"{self.amount}/{unit}"


def parse_rates(text: str) -> tuple[Rate, ...]:
    """Parse ``60/minute, 1000/hour``; ``none`` means no limit. Raises ValueError."""
    if text.strip() == NONE:
        return ()
    rates = []
    for part in text.split(","):
        match = _RATE.fullmatch(part.strip())
        if match is None:
            raise ValueError(
                "must be rates such as '60/minute, 1000/hour' (per second, minute, hour or day), or 'none'"
            )
        rates.append(Rate(int(match[1]), _SECONDS[match[2]]))
    # The shortest period first: a request that it refuses is not counted against the longer ones.
    return tuple(sorted(rates, key=lambda rate: rate.seconds))


@dataclass(frozen=True, slots=True)
class ToolRates:
    """A tool's own limits. A level that is set counts calls of this tool alone and replaces the general limit."""

    session: tuple[Rate, ...] | None = None
    principal: tuple[Rate, ...] | None = None
    tenant: tuple[Rate, ...] | None = None

    def of(self, level: Level) -> tuple[Rate, ...] | None:
        rates: tuple[Rate, ...] | None = getattr(self, level.value)
        return rates


NO_TOOL: Final = ToolRates()


@dataclass(frozen=True, slots=True)
class LimitRules:
    """The limits that apply to every request. An empty tuple or None means no limit.

    ``running_*`` limit requests being answered at once, ``streams_*`` notification streams open on one gateway,
    ``lists`` a principal's requests for lists and subscriptions, ``*_tokens`` the tokens that turns use, prompt and answer together,
    ``stored_*`` the bytes that are stored of what was said.
    """

    session: tuple[Rate, ...] = ()
    principal: tuple[Rate, ...] = ()
    tenant: tuple[Rate, ...] = ()
    running_principal: int | None = None
    running_tenant: int | None = None
    streams_principal: int | None = None
    lists: tuple[Rate, ...] = ()
    principal_tokens: tuple[Rate, ...] = ()
    tenant_tokens: tuple[Rate, ...] = ()
    stored_principal: int | None = None
    stored_tenant: int | None = None

    def buckets(
        self,
        principal: Principal,
        session: str | None,
        tool: str | None,
        own: ToolRates = NO_TOOL,
        cost: int = 1,
    ) -> Iterator[Bucket]:
        """The buckets that a request counts against, the narrowest first.

        ``own`` are the rates of its tool, ``cost`` the number of requests that it counts as. Where ``session`` is None nobody knows
        which requests belong together: they count as one session where the tool's own rates ask for it, else as the principal's alone.
        """
        for level in Level:
            own_rates = own.of(level)
            if level is Level.SESSION and session is None and own_rates is None:
                continue
            general: tuple[Rate, ...] = getattr(self, level.value)
            rates, counted_tool = (general, None) if own_rates is None else (own_rates, tool)
            if rates:
                key = _key("rate", level, principal, session, counted_tool)
                for rate in rates:
                    yield Bucket(level, rate, key, cost)

    def list_buckets(self, principal: Principal) -> tuple[Bucket, ...]:
        """The buckets that a request for a list or a subscription counts against."""
        key = _key("lists", Level.PRINCIPAL, principal, None, None)
        return tuple(Bucket(Level.PRINCIPAL, rate, key) for rate in self.lists)

    def places(self, principal: Principal, cost: int = 1) -> tuple[ConcurrencyLimit, ...]:
        """The pools in which a running request occupies a place, or ``cost`` places."""
        most = ((Level.PRINCIPAL, self.running_principal), (Level.TENANT, self.running_tenant))
        return tuple(
            ConcurrencyLimit(level, limit, _key("running", level, principal, None, None), cost)
            for level, limit in most
            if limit is not None
        )

    def stream_place(self, principal: Principal) -> ConcurrencyLimit | None:
        """The pool in which an open stream occupies a place; None when streams are unlimited."""
        if self.streams_principal is None:
            return None
        key = _key("streams", Level.PRINCIPAL, principal, None, None)
        return ConcurrencyLimit(Level.PRINCIPAL, self.streams_principal, key)

    def token_buckets(self, principal: Principal) -> tuple[Bucket, ...]:
        rates = ((Level.PRINCIPAL, self.principal_tokens), (Level.TENANT, self.tenant_tokens))
        return tuple(
            Bucket(level, rate, _key("tokens", level, principal, None, None))
            for level, each in rates
            for rate in each
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests or tokens counted together, and their limit. The key does not reveal whose they are.

    ``cost``: the number of requests that this request counts as.
    """

    level: Level
    rate: Rate
    key: str
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Use:
    """What counts against a limit now, and the seconds until there is room again, or until the count begins anew."""

    amount: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """Requests that run at once, and how many may; ``cost`` as in :class:`Bucket`."""

    level: Level
    most: int
    key: str
    cost: int = 1


def _key(what: str, level: Level, principal: Principal, session: str | None, tool: str | None) -> str:
    """A distinct key for everything that is counted separately, whatever characters the names contain."""
    whose = [what, level.value, principal.tenant]
    if level is not Level.TENANT:
        whose.append(principal.subject)
    material = json.dumps([whose, session if level is Level.SESSION else None, tool])
    return hashlib.blake2b(material.encode(), digest_size=16).hexdigest()
