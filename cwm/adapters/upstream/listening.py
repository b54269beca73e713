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

from cwm.adapters.upstream.http import OURS
from cwm.background import cancel_and_wait
from cwm.domain.upstream import Kind
from cwm.ports.upstream import Heard

_RELISTEN_SECONDS: Final = 1.0  # pause for an upstream that ends every stream at once
_WILL_NOT: Final = (types.METHOD_NOT_FOUND, types.INVALID_PARAMS, types.INVALID_REQUEST)
_CHANGED: Final[Mapping[type, Kind]] = {
    ToolsListChanged: Kind.TOOLS,
    PromptsListChanged: Kind.PROMPTS,
    ResourcesListChanged: Kind.RESOURCES,
    types.ToolListChangedNotification: Kind.TOOLS,
    types.PromptListChangedNotification: Kind.PROMPTS,
    types.ResourceListChangedNotification: Kind.RESOURCES,
}


class Listening:
    """Calls ``heard`` for each notification of one session. ``watched`` are the URIs of the subscribed resources."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._anew = asyncio.Event()
        self._accepted: frozenset[str] = frozenset()
        self._before = AsyncExitStack()
        self.watched: set[str] = set()

    def renew(self) -> None:
        """Subscribe again, because ``watched`` has changed."""
        self._anew.set()

    async def on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            self._heard(str(message.params.uri))
        elif (kind := _CHANGED.get(type(message))) is not None:
            self._heard(kind)

    async def listen(self, client: Callable[[], ClientSession]) -> None:
        """Read the stream of 2026-07-28; open it again when it is lost or ``watched`` has changed."""
        try:
            await self._listen(client)
        finally:
            await self._before.aclose()

    async def _listen(self, client: Callable[[], ClientSession]) -> None:
        refused: frozenset[str] = frozenset()
        while True:
            self._anew.clear()
            refused &= self.watched
            asked = self.watched - refused
            try:
                await self._listen_once(client(), asked)
            except MCPError as failed:
                if failed.data != OURS and failed.code in _WILL_NOT:
                    if not asked:
                        return
                    # An unknown URI must not end the other subscriptions, so retry without the new URIs; if none is
                    # new, retry without any, so that at least changes of lists are reported.
                    refused |= (asked - self._accepted) or asked
                    continue
            except (SubscriptionLost, TimeoutError):
                pass
            if not self._anew.is_set():
                # Notifications may have been missed: report a change of every kind.
                self._hear_of_everything()
                await asyncio.sleep(_RELISTEN_SECONDS)

    async def _listen_once(self, client: ClientSession, uris: AbstractSet[str]) -> None:
        asked = listen(
            client,
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
            resource_subscriptions=sorted(uris),
        )
        async with AsyncExitStack() as opened:
            stream = await opened.enter_async_context(asked)
            self._accepted = frozenset(uris)
            reading = asyncio.create_task(self._hear_all(stream))
            anew = asyncio.create_task(self._anew.wait())
            opened.push_async_callback(cancel_and_wait, reading, anew)
            await self._before.aclose()
            await asyncio.wait({reading, anew}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                # Keep this stream open until the next one is, so that no notification is missed between them.
                self._before = opened.pop_all()

    def _hear_of_everything(self) -> None:
        for kind in Kind:
            self._heard(kind)

    async def _hear_all(self, events: Any) -> None:
        async for event in events:
            self._hear(event)

    def _hear(self, event: ServerEvent) -> None:
        if isinstance(event, ResourceUpdated):
            self._heard(event.uri)
        elif (kind := _CHANGED.get(type(event))) is not None:
            self._heard(kind)


def tells_of_changes(capabilities: Mapping[str, Any]) -> bool:
    parts = (capabilities.get(part) or {} for part in ("tools", "prompts", "resources"))
    return any(part.get("listChanged") or part.get("subscribe") for part in parts)
