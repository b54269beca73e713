"""How much a caller may ask for: requests in a time, requests at once, and tokens."""

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
    """Whose requests are counted together."""

    SESSION = "session"
    """An agent session, an MCP session or a session of ``/v1``; a principal's own where a request has none."""
    PRINCIPAL = "principal"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Rate:
    """So many of something in so many seconds."""

    amount: int
    seconds: int

    def __str__(self) -> str:
        unit = next(unit for unit, seconds in _SECONDS.items() if seconds == self.seconds)
        return f"{self.amount}/{unit}"


def parse_rates(text: str) -> tuple[Rate, ...]:
    """``60/minute, 1000/hour``; ``none`` for no limit. Raises ValueError."""
    if text.strip() == NONE:
        return ()
    rates = []
    for part in text.split(","):
        found = _RATE.fullmatch(part.strip())
        if found is None:
            raise ValueError(
                "must be rates such as '60/minute, 1000/hour' (per second, minute, hour or day), or 'none'"
            )
        rates.append(Rate(int(found[1]), _SECONDS[found[2]]))
    # The shortest first: what it refuses is not counted against the longer ones.
    return tuple(sorted(rates, key=lambda rate: rate.seconds))


@dataclass(frozen=True, slots=True)
class ToolRates:
    """A tool's own limits: a level that is set is counted for the tool alone, in place of the general limit."""

    session: tuple[Rate, ...] | None = None
    principal: tuple[Rate, ...] | None = None
    tenant: tuple[Rate, ...] | None = None

    def of(self, level: Level) -> tuple[Rate, ...] | None:
        found: tuple[Rate, ...] | None = getattr(self, level.value)
        return found


NO_TOOL: Final = ToolRates()


@dataclass(frozen=True, slots=True)
class LimitRules:
    """What holds for every request. No rate, or None: no limit.

    ``running_*`` are requests that are being answered at the same time, ``streams_*`` streams of news that are open on
    one gateway, ``*_tokens`` those that turns take, prompt and answer together.
    """

    session: tuple[Rate, ...] = ()
    principal: tuple[Rate, ...] = ()
    tenant: tuple[Rate, ...] = ()
    running_principal: int | None = None
    running_tenant: int | None = None
    streams_principal: int | None = None
    principal_tokens: tuple[Rate, ...] = ()
    tenant_tokens: tuple[Rate, ...] = ()

    def buckets(
        self, principal: Principal, session: str | None, tool: str | None, own: ToolRates = NO_TOOL
    ) -> Iterator[Bucket]:
        """What a request counts against, the narrowest first; ``own`` are the rates of its tool."""
        for level in Level:
            ours = own.of(level)
            general: tuple[Rate, ...] = getattr(self, level.value)
            rates, counted = (general, None) if ours is None else (ours, tool)
            if rates:
                key = _key("rate", level, principal, session, counted)
                for rate in rates:
                    yield Bucket(level, rate, key)

    def places(self, principal: Principal) -> tuple[Place, ...]:
        """Where a running request takes a place."""
        most = ((Level.PRINCIPAL, self.running_principal), (Level.TENANT, self.running_tenant))
        return tuple(
            Place(level, limit, _key("running", level, principal, None, None))
            for level, limit in most
            if limit is not None
        )

    def stream_place(self, principal: Principal) -> Place | None:
        """Where an open stream takes a place; None where there may be any number."""
        if self.streams_principal is None:
            return None
        key = _key("streams", Level.PRINCIPAL, principal, None, None)
        return Place(Level.PRINCIPAL, self.streams_principal, key)

    def token_buckets(self, principal: Principal) -> tuple[Bucket, ...]:
        rates = ((Level.PRINCIPAL, self.principal_tokens), (Level.TENANT, self.tenant_tokens))
        return tuple(
            Bucket(level, rate, _key("tokens", level, principal, None, None))
            for level, each in rates
            for rate in each
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is counted together, and how much of it there may be. The key tells nothing of whose it is."""

    level: Level
    rate: Rate
    key: str


@dataclass(frozen=True, slots=True)
class Place:
    """Requests that run at once, and how many there may be."""

    level: Level
    most: int
    key: str


def _key(what: str, level: Level, principal: Principal, session: str | None, tool: str | None) -> str:
    """Different for everything that is counted apart, whatever characters names are made of."""
    whose = [what, level.value, principal.tenant]
    if level is not Level.TENANT:
        whose.append(principal.subject)
    told = json.dumps([whose, session if level is Level.SESSION else None, tool])
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()
