"""Whom to ask for news of a resource."""

from __future__ import annotations

from typing import Protocol

from cwm.domain.principal import Principal


class ResourceInterest(Protocol):
    """Told which resources clients want to hear of, so that whoever has them can be asked to tell.

    ``uri`` is as clients see it. ``agent_session`` is None for a client whose agent session is not known.
    ``authorization`` is what the request showed that asks for it, empty for nothing; None where no request does.
    Raises CwmError when nobody can be asked; where no request asks, who is away may be asked later instead.
    """

    async def watch(
        self,
        principal: Principal,
        agent_session: str | None,
        uri: str,
        authorization: str | None = None,
    ) -> None:
        """Somebody listens from now on. Told again when a session's stream opens on this replica."""

    async def unwatch(self, principal: Principal, agent_session: str | None, uri: str) -> None:
        """Nobody of this agent session listens any more; without one, this one client does not."""
