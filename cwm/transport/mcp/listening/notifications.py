"""Converts changes to what clients receive: JSON-RPC notifications, or events of a listen stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
    event_to_notification,
)

from cwm.domain.changes import Change, ChangeKind
from cwm.domain.shared_context import is_prefix, watches

SUBSCRIBED: Final = "subscribed:"
"""Prefix of the keys of an agent session's state that store its subscribed URIs."""

_OWN_URIS: Final = ("cwm:", "health:")

_LISTS: Final[Mapping[ChangeKind, ServerEvent]] = {
    ChangeKind.TOOLS: ToolsListChanged(),
    ChangeKind.PROMPTS: PromptsListChanged(),
    ChangeKind.RESOURCES: ResourcesListChanged(),
}
_KINDS: Final = {event: kind for kind, event in _LISTS.items()}


def event_of(change: Change) -> ServerEvent | None:
    """The event for ``change``; None if clients are not notified of it."""
    if change.kind is ChangeKind.RESOURCE and change.uri is not None:
        return ResourceUpdated(change.uri)
    return _LISTS.get(change.kind)


def change_of(event: ServerEvent, tenant: str, agent_session: str | None) -> Change:
    """The inverse of ``event_of``, for one listener."""
    if isinstance(event, ResourceUpdated):
        return Change(ChangeKind.RESOURCE, event.uri, agent_session, tenant)
    return Change(_KINDS[event], None, agent_session, tenant)


def frame(event: ServerEvent) -> bytes:
    """A server-sent event that clients of the handshake era understand."""
    message = {"jsonrpc": "2.0", **notification_of(event)}
    return f"event: message\r\ndata: {json.dumps(message, separators=(',', ':'))}\r\n\r\n".encode()


@dataclass(frozen=True)
class Subscribed:
    """The URIs that a client subscribed to; ``prefixes`` are those that stand for all resources with that prefix."""

    uris: frozenset[str] = frozenset()

    @cached_property
    def prefixes(self) -> list[str]:
        return sorted(filter(is_prefix, self.uris))

    def matching(self, uri: str) -> list[str]:
        """The subscribed URIs that a change of ``uri`` is reported under."""
        if is_prefix(uri):
            return sorted(subscription for subscription in self.uris if watches(subscription, uri))
        exact = [uri] if uri in self.uris else []
        if not uri.startswith(_OWN_URIS):
            # An upstream may report a part of the resource that the client subscribed to.
            return exact + sorted(whole for whole in self.uris if _is_part(uri, whole))
        return exact + [prefix for prefix in self.prefixes if prefix != uri and watches(prefix, uri)]

    def events(self, event: ServerEvent) -> list[ServerEvent]:
        """The events to send to the client for ``event``."""
        if not isinstance(event, ResourceUpdated):
            return [event]
        return [ResourceUpdated(uri) for uri in self.matching(event.uri)]


def _is_part(uri: str, whole: str) -> bool:
    return uri != whole and uri.startswith(whole) and (whole.endswith("/") or uri[len(whole)] in "/?#")


def subscribed_to(state: Mapping[str, str]) -> frozenset[str]:
    """The URIs that an agent session subscribed to, from its stored state."""
    return frozenset(name.removeprefix(SUBSCRIBED) for name in state if name.startswith(SUBSCRIBED))


def notification_of(event: ServerEvent) -> dict[str, Any]:
    """The notification as JSON: ``method`` and, if there are any, ``params``."""
    notification = event_to_notification(event, {})
    message = notification.model_dump(mode="json", by_alias=True, exclude_none=True)
    params = {name: value for name, value in message.get("params", {}).items() if name != "_meta"}
    return {"method": message["method"], **({"params": params} if params else {})}
