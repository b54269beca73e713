"""The upstream servers: whether they are there, what they offer, and which tools changed."""

from __future__ import annotations

from cwm.transport.console.pages import Page
from cwm.transport.console.views import Asked


async def upstreams(asked: Asked) -> Page:
    return Page("upstreams.html", {"upstreams": await asked.services.offers_of_upstreams(asked.principal)})
