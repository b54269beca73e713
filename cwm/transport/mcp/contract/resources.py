"""The contract's resources: the answers of the matching tools, readable without a tool call."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any, Final

from fastmcp.resources import Resource, ResourceContent, ResourceResult, ResourceTemplate

from cwm.domain.changes import SESSIONS_URI, WINDOWS_URI
from cwm.domain.errors import InvalidParameterError
from cwm.domain.results import RESULTS_URI, Part, PartKind
from cwm.domain.session import LIVE, SessionQuery
from cwm.domain.turn import TurnSource
from cwm.domain.window import WindowQuery
from cwm.services.windows.browse import MAX_PAGE
from cwm.transport.mcp.contract.render import sessions as render_sessions
from cwm.transport.mcp.contract.render import system as render_system
from cwm.transport.mcp.contract.render import turns as render_turns
from cwm.transport.mcp.contract.render import windows as render_windows
from cwm.transport.mcp.mcp_server import CALLER, Caller

_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_LONGEST_INDEX: Final = 9
TURNS_URI: Final = "cwm://turns"


async def windows(caller: Caller = CALLER) -> str:
    """The newest 100 windows, in the form of window_list's answer.

    While has_more is true, cwm://windows?cursor=<next_cursor> is the next page.
    """
    return await windows_from(None, caller)


async def sessions(caller: Caller = CALLER) -> str:
    """The newest 100 sessions that can take turns (active or thawed), in the form of session_list's answer.

    While has_more is true, cwm://sessions?cursor=<next_cursor> is the next page.
    """
    return await sessions_from(None, caller)


async def windows_from(cursor: str | None = None, caller: Caller = CALLER) -> str:
    """A further page of cwm://windows."""
    page = await caller.services.browse.windows(caller.principal, WindowQuery(limit=MAX_PAGE), cursor)
    return json.dumps(render_windows.window_page(page))


async def sessions_from(cursor: str | None = None, caller: Caller = CALLER) -> str:
    """A further page of cwm://sessions."""
    page = await caller.services.browse.sessions(caller.principal, SessionQuery(LIVE, MAX_PAGE), cursor)
    return json.dumps(render_sessions.session_list(page))


async def transcript(turn: str, caller: Caller = CALLER) -> str:
    """What was said up to a turn, in the form of turn_show's answer."""
    content = await caller.services.history.show(caller.principal, TurnSource(turn_id=turn))
    return json.dumps(render_turns.turn_shown(content))


async def stats(caller: Caller = CALLER) -> str:
    """Cache statistics in the form of cache_stats's answer, with the health of every component under health."""
    cache = await caller.services.inspect.cache_stats(caller.principal)
    health = await caller.services.inspect.health(principal=caller.principal)
    statistics = render_system.cache_stats(
        cache, caller.services.delivery.savings.of(caller.principal.tenant)
    )
    return json.dumps({**statistics, "health": render_system.health(health)})


async def status(caller: Caller = CALLER) -> str:
    """The health of every component now, in the form of health_check's answer."""
    return json.dumps(render_system.health(await caller.services.inspect.health(principal=caller.principal)))


async def result(handle: str, caller: Caller = CALLER) -> ResourceResult:
    """A stored tool result in full: every part as the tool returned it."""
    parts = await caller.services.results.whole(caller.principal, handle)
    await caller.services.delivery.read_whole(caller.agent, parts)
    return ResourceResult([_content(part) for part in parts])


async def result_part(handle: str, part: str, caller: Caller = CALLER) -> ResourceResult:
    """One part of a stored tool result in full; parts are numbered from 0."""
    if not (part.isascii() and part.isdigit() and len(part) <= _LONGEST_INDEX):
        raise InvalidParameterError("Parts are numbered from 0.", field="part")
    parts = await caller.services.results.whole(caller.principal, handle, int(part))
    await caller.services.delivery.read_whole(caller.agent, parts)
    return ResourceResult([_content(each) for each in parts])


def resource_templates() -> list[ResourceTemplate]:
    return [
        _template(f"{WINDOWS_URI}{{?cursor}}", "Page of windows", windows_from, _JSON),
        _template(f"{SESSIONS_URI}{{?cursor}}", "Page of live sessions", sessions_from, _JSON),
        _template(f"{TURNS_URI}/{{turn}}", "Transcript", transcript, _JSON),
        _template(f"{RESULTS_URI}/{{handle}}", "Stored result", result, _BYTES),
        _template(f"{RESULTS_URI}/{{handle}}/{{part}}", "Part of a stored result", result_part, _BYTES),
    ]


def resources() -> list[Resource]:
    return [
        _resource(WINDOWS_URI, "Windows", windows),
        _resource(SESSIONS_URI, "Live sessions", sessions),
        _resource("cwm://stats", "Statistics", stats),
        _resource("health://status", "Health", status),
    ]


def _resource(uri: str, title: str, read: Callable[..., Any]) -> Resource:
    return Resource.from_function(
        read, uri, name=read.__name__, title=title, description=inspect.getdoc(read), mime_type=_JSON
    )


def _template(uri: str, title: str, read: Callable[..., Any], mime_type: str) -> ResourceTemplate:
    return ResourceTemplate.from_function(
        read,
        uri,
        name=read.__name__,
        title=title,
        description=inspect.getdoc(read),
        mime_type=mime_type,
    )


def _content(part: Part) -> ResourceContent:
    text = part.kind is not PartKind.BINARY
    return ResourceContent(part.body.decode() if text else part.body, mime_type=part.media_type)
