"""The list of windows, and one of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from cwm.domain.engine import Tier
from cwm.domain.errors import CwmError
from cwm.domain.turn import TurnSource
from cwm.domain.visibility import visibility_of
from cwm.domain.window import WindowQuery
from cwm.transport.console.actions.two_steps import links
from cwm.transport.console.actions.windows import WINDOWS
from cwm.transport.console.pages import Page, link
from cwm.transport.console.turns.turn import messages_of
from cwm.transport.console.views import Asked

_PAGE: Final = 25
_TIERS: Final = (Tier.CPU, Tier.REDIS, Tier.DISK)


async def windows(asked: Asked) -> Page:
    words = asked.text("q")
    query = WindowQuery(limit=_PAGE, search=words or None)
    page = await asked.services.browse.windows(asked.principal, query, asked.text("after") or None)
    return Page("windows.html", {"page": page, "words": words, "is_first": not asked.text("after")})


async def window(asked: Asked) -> Page:
    services, principal, name = asked.services, asked.principal, asked.part("window_name")
    status, lineage = await asyncio.gather(
        services.browse.window(principal, name), services.browse.lineage(principal, name)
    )
    is_known = status.residency.hit_rate is not None
    blocks = status.residency.blocks if is_known else ()
    by_tier = Counter(_nearest(block.tiers) for block in blocks)
    return Page(
        "window.html",
        {
            "window": status.window,
            "actions": links(WINDOWS, principal, link("windows", name), status.window, status.window.circle),
            "is_known": is_known,
            "visibility": visibility_of(status.window.circle),
            "tiers": [(tier.value, by_tier[tier]) for tier in _TIERS if by_tier[tier]],
            "nowhere": by_tier[None],
            "block_count": len(blocks),
            "lineage": lineage,
            **await _said(asked, name),
        },
    )


async def _said(asked: Asked, name: str) -> dict[str, object]:
    """What was said in the window; its turn may be gone."""
    try:
        shown = await asked.services.history.show(asked.principal, TurnSource(window_name=name))
    except CwmError as error:
        return {"turn": None, "unsaid": error.message}
    return messages_of(asked, shown)


def _nearest(tiers: tuple[Tier, ...]) -> Tier | None:
    """Of the tiers that have a block, the one nearest to the engine."""
    return next((tier for tier in _TIERS if tier in tiers), None)
