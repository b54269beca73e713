"""The first page: whether everything is well, what goes on, and what needs attention."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from cwm.domain.session import LIVE, SessionQuery, SessionState
from cwm.domain.window import Durability, Window, WindowQuery
from cwm.services.engines.survey import EngineState
from cwm.services.health.inspect import UPSTREAM, Health, Status
from cwm.transport.console.pages import Page, link
from cwm.transport.console.views import Asked
from cwm.transport.console.wording import component

_NEWEST: Final = 8
_LOOKED_AT: Final = 50
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
    health, stats, page, windows, engines = await asyncio.gather(
        services.inspect.health(principal=principal),
        services.inspect.cache_stats(principal),
        services.browse.sessions(principal, SessionQuery(states=LIVE, limit=_NEWEST)),
        services.browse.windows(principal, WindowQuery(limit=_LOOKED_AT)),
        services.survey(),
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
            "windows": windows.windows[:_NEWEST],
            "kept": sum(count for state, count in stats.sessions.items() if state != SessionState.DELETED),
            "live": sum(stats.sessions.get(state, 0) for state in LIVE),
            "matters": _matters(health, windows.windows, engines),
        },
    )


def _matters(health: Health, windows: list[Window], engines: list[EngineState]) -> list[Matter]:
    unwell = [each for each in health.components if each.status is not Status.HEALTHY]
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
    return matters + [
        Matter(
            f"Window {each.name}", each.failure or "Its KV could not be stored.", link("windows", each.name)
        )
        for each in windows
        if each.durability is Durability.FAILED
    ]
