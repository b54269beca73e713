"""The first page: whether everything is well, what goes on, and what needs attention."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cwm.domain.access import AccessScope
from cwm.domain.limits import Level
from cwm.domain.notation import size
from cwm.domain.session import LIVE, SessionQuery, SessionState
from cwm.domain.window import Window, WindowQuery
from cwm.ports.audit import AuditFilter
from cwm.services.access.usage import Measure
from cwm.services.engines.survey import EngineState
from cwm.services.health.inspect import UPSTREAM, Health, Status
from cwm.transport.console.health.reuse import first_hour, periods
from cwm.transport.console.pages import Page, link
from cwm.transport.console.views import Asked
from cwm.transport.console.wording import component, lasting, percent, period

_NEWEST: Final = 8
_MOST_FAILED: Final = 100
_NEARLY: Final = 0.8
_QUARANTINE: Final = "window.quarantine"
_BUDGETS: Final = {Level.PRINCIPAL: "Your tokens", Level.TENANT: "The tenant's tokens"}
_STORED: Final = {
    Level.PRINCIPAL: "Your stored conversations",
    Level.TENANT: "The tenant's stored conversations",
}
_RECENT: Final = timedelta(days=7)
_STATES: Final = {
    Status.HEALTHY: "Everything is well.",
    Status.DEGRADED: "It works, but not everything is well.",
    Status.UNHEALTHY: "Something that every turn needs does not answer.",
}


@dataclass(frozen=True, slots=True)
class Matter:
    """Something that needs attention: what, why, and where to look."""

    what: str
    why: str
    where: str | None = None


async def overview(asked: Asked) -> Page:
    services, principal = asked.services, asked.principal
    now = services.journal.clock.now()
    health, stats, page, windows, engines, (sums, warned, failed) = await asyncio.gather(
        services.inspect.health(principal=principal),
        services.inspect.cache_stats(principal),
        services.browse.sessions(principal, SessionQuery(states=LIVE, limit=_NEWEST)),
        services.browse.windows(principal, WindowQuery(limit=_NEWEST)),
        services.survey(principal),
        asyncio.gather(
            services.turn_sums.of(principal, first_hour(now)),
            _warned(asked, now),
            services.browse.failed_windows(principal, _MOST_FAILED),
        ),
    )
    latest = await services.history.latest(principal, page.sessions)
    return Page(
        "overview.html",
        {
            "health": health,
            "verdict": _STATES[health.status],
            "stats": stats,
            "sessions": page.sessions,
            "more_sessions": page.next_cursor is not None,
            "latest": latest,
            "windows": windows.windows,
            "kept": sum(count for state, count in stats.sessions.items() if state != SessionState.DELETED),
            "live": sum(stats.sessions.get(state, 0) for state in LIVE),
            "periods": periods(sums, now),
            "matters": [*_matters(health, failed, engines), *warned],
        },
    )


async def _warned(asked: Asked, now: datetime) -> list[Matter]:
    """A quota that is nearly used up; for who runs the gateway what upstreams changed, and for an administrator windows whose KV was wrong."""
    services, principal = asked.services, asked.principal
    used = (await services.results.use(principal)).size_bytes
    quota = services.results.quota_bytes
    warned = []
    if quota and used >= _NEARLY * quota:
        why = f"{percent(used, quota)} % of your quota are used: the next ones may be refused."
        warned.append(Matter("Stored results", why, link("results")))
    near = await services.usage.near(principal)
    warned += [
        Matter(
            _STORED[each.level],
            f"{percent(each.use.amount, each.most)} % of {size(each.most)} are used"
            f"{': turns are refused' if each.use.amount >= each.most else ''}; deleted conversations make room.",
            link("keys"),
        )
        for each in near
        if each.measure is Measure.STORED and each.use is not None and each.most is not None
    ]
    warned += [
        Matter(
            _BUDGETS[each.level],
            f"{percent(each.use.amount, each.most)} % of {each.most:,} in {period(each.rate.seconds)} are used"
            f"{': turns are refused' if each.use.amount >= each.most else ''}; counted anew in {lasting(each.use.seconds)}.",
            link("keys"),
        )
        for each in near
        if each.use is not None and each.most is not None and each.rate is not None
    ]
    if services.operators.have(principal):
        warned += [
            Matter(
                f"Upstream {each.health.name}",
                f"{len(each.changed):,} of its tools and instructions changed or are new, and wait to be accepted.",
                link("upstreams"),
            )
            for each in await services.offers_of_upstreams(principal)
            if each.changed
        ]
    if AccessScope.ADMIN not in principal.scopes:
        return warned
    recent = AuditFilter(event=_QUARANTINE, since=now - _RECENT)
    page = await services.read_audit(principal, recent, _NEWEST)
    quarantined = {record.event.window_name: record.event for record in reversed(page.records)}
    return warned + [
        Matter(
            f"Window {name}",
            f"Its KV did not continue as it was frozen: it was computed again on {event.timestamp:%d %B at %H:%M} UTC.",
            link("audit", event=_QUARANTINE, window=name),
        )
        for name, event in quarantined.items()
    ]


def _matters(health: Health, failed: list[Window], engines: list[EngineState]) -> list[Matter]:
    unwell = [each for each in health.components if each.status is not Status.HEALTHY]
    unwell.sort(key=lambda each: each.status is not Status.UNHEALTHY)
    matters = [
        Matter(
            component(each.name), each.message, link("upstreams") if each.name.startswith(UPSTREAM) else None
        )
        for each in unwell
    ]
    matters += [
        Matter(f"Engine {each.name}", "It is being drained: it gets no new conversations.", link("engines"))
        for each in engines
        if each.draining_since is not None
    ]
    matters += [
        Matter(
            f"Window {each.name}", each.failure or "Its KV could not be stored.", link("windows", each.name)
        )
        for each in failed[:_NEWEST]
    ]
    if len(failed) > _NEWEST:
        more = "or more " if len(failed) == _MOST_FAILED else ""
        why = f"{len(failed) - _NEWEST:,} {more}older ones failed, too."
        matters.append(Matter("More windows", why, link("windows")))
    return matters
