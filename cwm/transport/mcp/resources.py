"""The contract's resources: what the tools of the same subject answer, to be read without a call."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any, Final

from fastmcp.resources import Resource

from cwm.domain.changes import SESSIONS_URI, WINDOWS_URI
from cwm.domain.session import SessionState
from cwm.domain.window import WindowQuery
from cwm.services.browse import MAX_PAGE
from cwm.transport.mcp import render
from cwm.transport.mcp.face import CALLER, Caller

_JSON: Final = "application/json"


async def windows(caller: Caller = CALLER) -> str:
    """The newest 100 windows, as window_list answers; has_more says that there are others."""
    page = await caller.services.browse.windows(caller.principal, WindowQuery(limit=MAX_PAGE))
    return json.dumps(render.window_page(page))


async def sessions(caller: Caller = CALLER) -> str:
    """The newest 100 active sessions, as session_list answers."""
    active = await caller.services.browse.sessions(caller.principal, SessionState.ACTIVE, MAX_PAGE)
    return json.dumps(render.session_list(active))


async def stats(caller: Caller = CALLER) -> str:
    """Cache statistics, as cache_stats answers, and the health of every component under health."""
    cache = await caller.services.inspect.cache_stats(caller.principal)
    health = await caller.services.inspect.health()
    return json.dumps({**render.cache_stats(cache), "health": render.health(health)})


async def status(caller: Caller = CALLER) -> str:
    """The health of every component now, as health_check answers."""
    return json.dumps(render.health(await caller.services.inspect.health()))


def resources() -> list[Resource]:
    return [
        _resource(WINDOWS_URI, "Windows", windows),
        _resource(SESSIONS_URI, "Active sessions", sessions),
        _resource("cwm://stats", "Statistics", stats),
        _resource("health://status", "Health", status),
    ]


def _resource(uri: str, title: str, read: Callable[..., Any]) -> Resource:
    return Resource.from_function(
        read, uri, name=read.__name__, title=title, description=inspect.getdoc(read), mime_type=_JSON
    )
