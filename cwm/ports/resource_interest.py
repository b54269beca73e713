"""Registers interest in updates of resources with their owners."""

from __future__ import annotations

from typing import Protocol

from cwm.domain.principal import Principal


class ResourceInterest(Protocol):
    """Gets told which resources clients subscribe to, so that it can subscribe to their owners.

    ``uri`` is as clients see it. ``agent_session`` is None for a client whose agent session is unknown.
    ``authorization`` is the Authorization header of the subscribing request, empty when it has none; None when no
    request is involved. Raises CwmError when the owner cannot be asked. When no request is involved, an unavailable
    owner may be asked later instead.
    """

    async def watch(
        self,
        principal: Principal,
        agent_session: str | None,
        uri: str,
        authorization: str | None = None,
    ) -> None:
        """Somebody subscribed. Called again when a session's stream opens on this replica."""

    async def unwatch(self, principal: Principal, agent_session: str | None, uri: str) -> None:
        """The last subscriber of this agent session is gone; without an agent session, this one client."""
