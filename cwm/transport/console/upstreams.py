"""The upstream servers: whether they are there, what they offer, and which tools changed."""

from __future__ import annotations

from urllib.parse import quote

from cwm.transport.console.actions.two_steps import links
from cwm.transport.console.actions.upstreams import UPSTREAMS
from cwm.transport.console.pages import Page, link
from cwm.transport.console.views import Asked


async def upstreams(asked: Asked) -> Page:
    upstreams = await asked.services.offers_of_upstreams(asked.principal)
    actions = {
        each.health.name: links(
            UPSTREAMS, asked.principal, link("upstreams", quote(each.health.name, safe="")), each
        )
        for each in upstreams
    }
    return Page("upstreams.html", {"upstreams": upstreams, "actions": actions})
