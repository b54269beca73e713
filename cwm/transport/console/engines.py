"""The engines: what each is, and what it does now."""

from __future__ import annotations

import asyncio

from cwm.transport.console.pages import Page
from cwm.transport.console.views import Asked


async def engines(asked: Asked) -> Page:
    states, stats = await asyncio.gather(
        asked.services.survey(), asked.services.inspect.cache_stats(asked.principal)
    )
    return Page("engines.html", {"engines": states, "stats": stats})
