"""What agents keep: shared context, and stored results of tools."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from cwm.domain.access import AccessScope
from cwm.domain.errors import InvalidParameterError, ResultNotFoundError
from cwm.domain.results import StoredResult
from cwm.domain.shared_context import SESSION, scope_of
from cwm.transport.console.pages import Page
from cwm.transport.console.views import Asked

_KEYS: Final = 50
_RESULTS: Final = 25
_READ: Final = frozenset({AccessScope.CONTEXT_READ})


async def scopes(asked: Asked) -> Page:
    """Those that have keys now."""
    asked.principal.require(_READ)
    context = asked.services.shared_context
    found = await context.named_scopes(asked.principal)
    stats = await asyncio.gather(*(context.stats(scope) for scope in found))
    return Page("scopes.html", {"scopes": [each for each in zip(found, stats, strict=True) if each[1].keys]})


async def scope(asked: Asked) -> Page:
    """A page of the keys of one scope."""
    asked.principal.require(_READ)
    name = asked.part("scope")
    if name == SESSION:
        raise InvalidParameterError(
            "scope is tenant or workspace:<name>: an agent's own is its alone.", field="scope"
        )
    context, named = asked.services.shared_context, scope_of(asked.principal.tenant, "", name)
    prefix, after = asked.text("q"), asked.text("after")
    page, stats = await asyncio.gather(
        context.list(named, prefix, after or None, _KEYS), context.stats(named)
    )
    return Page(
        "keys.html",
        {
            "scope": named,
            "stats": stats,
            "entries": page.entries,
            "words": prefix,
            "is_first": not after,
            "next_after": page.entries[-1].key if page.more else None,
        },
    )


async def results(asked: Asked) -> Page:
    stored = await asked.services.results.of(asked.principal)
    first = _after(stored, asked.text("after"))
    shown = stored[first : first + _RESULTS]
    return Page(
        "results.html",
        {
            "results": shown,
            "count": len(stored),
            "used": sum(result.size for result in stored),
            "quota": asked.services.results.quota_bytes,
            "is_first": not first,
            "next_after": shown[-1].handle if len(stored) > first + _RESULTS else None,
        },
    )


def _after(stored: Sequence[StoredResult], handle: str) -> int:
    """The index after the result with this handle; 0 without one. CWM-2005 if it is not there any more."""
    if not handle:
        return 0
    index = next((index for index, result in enumerate(stored) if result.handle == handle), None)
    if index is None:
        raise ResultNotFoundError("There is no such stored result; it may have expired.")
    return index + 1
