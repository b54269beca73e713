"""Receives an upstream's notifications: among a session's messages, or on the stream of protocol 2026-07-28."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from typing import Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from cwm.adapters.upstream.http import fault_of
from cwm.background import cancel_and_wait
from cwm.domain.upstream import OfferKind
from cwm.ports.upstream import Heard, UpstreamRejectedError

_RELISTEN_SECONDS: Final = 1.0  # pause for an upstream that ends every stream at once
_WILL_NOT: Final = (types.METHOD_NOT_FOUND, types.INVALID_PARAMS, types.INVALID_REQUEST)
_KIND_OF: Final[Mapping[type, OfferKind]] = {
    ToolsListChanged: OfferKind.TOOLS,
    PromptsListChanged: OfferKind.PROMPTS,
    ResourcesListChanged: OfferKind.RESOURCES,
    types.ToolListChangedNotification: OfferKind.TOOLS,
    types.PromptListChangedNotification: OfferKind.PROMPTS,
    types.ResourceListChangedNotification: OfferKind.RESOURCES,
}


class Listening:
    """Calls ``on_change`` for each notification of one session. ``watched`` are the URIs of the subscribed resources.

    ``active``: a stream of 2026-07-28 is open.
    """

    def __init__(self, on_change: Heard) -> None:
        self._on_change = on_change
        self._renewal = asyncio.Event()
        self._accepted_uris: frozenset[str] = frozenset()
        self._previous_stream = AsyncExitStack()
        self.watched: set[str] = set()
        self.active = False

    def renew(self) -> None:
        """Subscribe again, because ``watched`` has changed."""
        self._renewal.set()

    async def on_message(self, message: IncomingMessage) -> None:
        self._report(message)

    async def listen(self, client: Callable[[], ClientSession]) -> None:
        """Read the stream of 2026-07-28; open it again when it is lost or ``watched`` has changed."""
        try:
            await self._listen(client)
        finally:
            await self._previous_stream.aclose()

    async def _listen(self, client: Callable[[], ClientSession]) -> None:
        rejected_uris: frozenset[str] = frozenset()
        while True:
            self._renewal.clear()
            rejected_uris &= self.watched
            uris = self.watched - rejected_uris
            try:
                await self._listen_once(client(), uris)
            except MCPError as error:
                fault = fault_of(error)
                if isinstance(fault, UpstreamRejectedError) or (fault is None and error.code in _WILL_NOT):
                    if not uris:
                        return
                    # An unknown URI must not end the other subscriptions, so retry without the new URIs; if none is
                    # new, retry without any, so that at least changes of lists are reported.
                    rejected_uris |= (uris - self._accepted_uris) or uris
                    continue
            except (SubscriptionLost, TimeoutError):
                pass
            if not self._renewal.is_set():
                self.active = False
                # Notifications may have been missed: report a change of every kind.
                for kind in OfferKind:
                    self._on_change(kind)
                await asyncio.sleep(_RELISTEN_SECONDS)

    async def _listen_once(self, client: ClientSession, uris: AbstractSet[str]) -> None:
        subscription = listen(
            client,
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
            resource_subscriptions=sorted(uris),
        )
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(subscription)
            self._accepted_uris = frozenset(uris)
            reading = asyncio.create_task(self._report_all(stream))
            renewal = asyncio.create_task(self._renewal.wait())
            stack.push_async_callback(cancel_and_wait, reading, renewal)
            await self._previous_stream.aclose()
            self.active = True
            await asyncio.wait({reading, renewal}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                # Keep this stream open until the next one is, so that no notification is missed between them.
                self._previous_stream = stack.pop_all()

    async def _report_all(self, events: Any) -> None:
        async for event in events:
            self._report(event)

    def _report(self, news: ServerEvent | IncomingMessage) -> None:
        if isinstance(news, ResourceUpdated):
            self._on_change(news.uri)
        elif isinstance(news, types.ResourceUpdatedNotification):
            self._on_change(str(news.params.uri))
        elif (kind := _KIND_OF.get(type(news))) is not None:
            self._on_change(kind)


def reports_changes(capabilities: Mapping[str, Any]) -> bool:
    parts = (capabilities.get(part) or {} for part in ("tools", "prompts", "resources"))
    return any(part.get("listChanged") or part.get("subscribe") for part in parts)
