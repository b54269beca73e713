"""What agents keep: shared context, and stored results of tools."""

from __future__ import annotations

import asyncio
from typing import Final

from cwm.domain.access import AccessScope
from cwm.domain.errors import InvalidParameterError
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
    stored, after = asked.services.results, asked.text("after")
    found, use = await asyncio.gather(
        stored.of(asked.principal, after, _RESULTS + 1), stored.use(asked.principal)
    )
    shown = found[:_RESULTS]
    return Page(
        "results.html",
        {
            "results": shown,
            "count": use.count,
            "used": use.size_bytes,
            "quota": stored.quota_bytes,
            "is_first": not after,
            "next_after": shown[-1].handle if len(found) > _RESULTS else None,
        },
    )
