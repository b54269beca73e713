"""The engines: what each is, and what it does now."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from cwm.transport.console.actions.engines import ENGINES
from cwm.transport.console.actions.two_steps import links
from cwm.transport.console.pages import Page, link
from cwm.transport.console.views import Asked


async def engines(asked: Asked) -> Page:
    states, stats = await asyncio.gather(
        asked.services.survey(asked.principal), asked.services.inspect.cache_stats(asked.principal)
    )
    actions = {
        each.name: links(ENGINES, asked.principal, link("engines", quote(each.name, safe="")), each)
        for each in states
    }
    return Page(
        "engines.html",
        {
            "engines": states,
            "actions": actions,
            "stats": stats,
            "upgrades": await asked.services.upgrades.under_way(asked.principal),
        },
    )
