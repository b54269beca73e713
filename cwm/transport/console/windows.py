"""The list of windows, and one of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from cwm.domain.engine import Tier
from cwm.domain.errors import CwmError
from cwm.domain.turn import Turn, TurnSource
from cwm.domain.visibility import visibility_of
from cwm.domain.window import Window, WindowQuery
from cwm.transport.console.actions.two_steps import links
from cwm.transport.console.actions.windows import WINDOWS
from cwm.transport.console.go_on import Step, Way, ways
from cwm.transport.console.pages import Page, link
from cwm.transport.console.turns.turn import messages_of, shown_page
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
    said, thaws, is_there = await asyncio.gather(
        _said(asked, name),
        services.read_audit.thaws(principal, name, status.window.created_at),
        _is_there(asked, status.window.session_id),
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
            "receipts": [
                (record, record.event.details, asked.traces.of(record.event.details)) for record in thaws
            ],
            "is_there": is_there,
            "ways": _ways(said, status.window, is_there=is_there),
            **said,
        },
    )


async def _is_there(asked: Asked, session_id: str) -> bool:
    """Whether the conversation that the window was frozen from has a page for who asks."""
    try:
        await asked.services.browse.record(asked.principal, session_id)
    except CwmError:
        return False
    return True


def _ways(said: Mapping[str, object], window: Window, *, is_there: bool) -> list[Way]:
    turn = said["turn"]
    back = f"cwm windows thaw {window.name} --as {window.session_id if is_there else 'SESSION'}"
    first = Step("Bring its session back to this window:", back)
    client = turn.client if isinstance(turn, Turn) else ""
    return ways(client, first, f"window:{window.name}", window.model)


async def _said(asked: Asked, name: str) -> dict[str, object]:
    """What was said in the window; its turn may be gone."""
    try:
        shown = await shown_page(asked, TurnSource(window_name=name))
    except CwmError as error:
        return {"turn": None, "unsaid": error.published}
    return await messages_of(shown)


def _nearest(tiers: tuple[Tier, ...]) -> Tier | None:
    """Of the tiers that have a block, the one nearest to the engine."""
    return next((tier for tier in _TIERS if tier in tiers), None)
