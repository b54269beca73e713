"""Limits in words: what is counted, of whom, and which setting says how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from cwm.domain.limits import Level
from cwm.services.access.usage import Measure, Standing

_SETTINGS: Final[Mapping[tuple[Measure, Level], str]] = {
    (Measure.REQUESTS, Level.SESSION): "CWM_RATE_LIMIT_SESSION",
    (Measure.REQUESTS, Level.PRINCIPAL): "CWM_RATE_LIMIT_PRINCIPAL",
    (Measure.REQUESTS, Level.TENANT): "CWM_RATE_LIMIT_TENANT",
    (Measure.LISTS, Level.PRINCIPAL): "CWM_RATE_LIMIT_LISTS",
    (Measure.RUNNING, Level.PRINCIPAL): "CWM_CONCURRENT_PRINCIPAL",
    (Measure.RUNNING, Level.TENANT): "CWM_CONCURRENT_TENANT",
    (Measure.STREAMS, Level.PRINCIPAL): "CWM_STREAMS_PRINCIPAL",
    (Measure.TOKENS, Level.PRINCIPAL): "CWM_TOKEN_BUDGET_PRINCIPAL",
    (Measure.TOKENS, Level.TENANT): "CWM_TOKEN_BUDGET_TENANT",
    (Measure.STORED, Level.PRINCIPAL): "CWM_STORED_PRINCIPAL_GB",
    (Measure.STORED, Level.TENANT): "CWM_STORED_TENANT_GB",
}
_WHAT: Final[Mapping[Measure, str]] = {
    Measure.REQUESTS: "Requests",
    Measure.LISTS: "Reads, lists and subscriptions",
    Measure.RUNNING: "Requests at once",
    Measure.STREAMS: "Streams open on this gateway",
    Measure.TOKENS: "Tokens of turns",
    Measure.STORED: "Stored conversations",
}
_WHOSE: Final[Mapping[Level, str]] = {
    Level.SESSION: "each session",
    Level.PRINCIPAL: "yours",
    Level.TENANT: "the tenant's",
}


@dataclass(frozen=True, slots=True)
class Row:
    """Limits on one thing that have one setting, the shortest period first; ``limits`` is empty where there is none. ``is_size``: they are bytes."""

    what: str
    whose: str
    setting: str
    is_per_session: bool
    is_budget: bool
    is_size: bool
    limits: Sequence[Standing]


def rows(standings: Sequence[Standing]) -> list[Row]:
    """``standings`` with one setting stand beside each other."""
    return [
        Row(
            _WHAT[measure],
            _WHOSE[level],
            _SETTINGS[measure, level],
            level is Level.SESSION,
            measure is Measure.TOKENS,
            measure is Measure.STORED,
            [each for each in group if each.most is not None],
        )
        for (measure, level), group in groupby(standings, lambda each: (each.measure, each.level))
    ]
