"""Collects what the upstreams tell models of themselves, for a client that begins a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from cwm.domain.errors import CwmError
from cwm.services.upstreams.link import Link, LinkState
from cwm.services.upstreams.upstreams import CallerOf, Upstreams

# Clients give a server few seconds to begin a session.
_MOST_SECONDS: Final = 2.0


async def instructions_of(upstreams: Upstreams, caller: Callable[[], Awaitable[CallerOf]]) -> dict[str, str]:
    """The instructions by upstream, of those that are there or connect within two seconds.

    ``caller`` is called only for upstreams that need the caller's credentials.
    """
    links = list(upstreams.roster.links.values())
    texts = await asyncio.gather(*(_instructions(upstreams, link, caller) for link in links))
    return {link.spec.name: text for link, text in zip(links, texts, strict=True) if text}


async def _instructions(
    upstreams: Upstreams, link: Link, caller: Callable[[], Awaitable[CallerOf]]
) -> str | None:
    try:
        async with asyncio.timeout(_MOST_SECONDS):
            if link.by_caller:
                catalogue = await upstreams.catalogue(link, await caller())
            else:
                await link.settled()
                catalogue = link.catalogue if link.state is LinkState.READY else None
            return None if catalogue is None else await catalogue.instructions()
    except (CwmError, TimeoutError):
        return None
