"""Finds the session that a request belongs to: by its client's own word, else by the answers that it carries."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.domain.errors import CwmError
from cwm.domain.names import require_session_id
from cwm.domain.principal import Principal
from cwm.domain.turn import Joined
from cwm.ports.turn_wire import TurnRequest
from cwm.services.audit.journal import Journal
from cwm.services.turns.finding.captured import Captured
from cwm.services.turns.finding.client_word import as_its_client_says
from cwm.services.turns.finding.continuation import Continuation
from cwm.services.turns.finding.destination import Destination
from cwm.services.turns.finding.request import ClientRequest, messages_of


@dataclass(frozen=True, slots=True)
class FindSession:
    """Principals never share a session that was found, whatever their clients call it or say in it."""

    continuation: Continuation
    captured: Captured
    journal: Journal

    async def __call__(
        self, principal: Principal, incoming: ClientRequest, request: TurnRequest, follows: str | None
    ) -> Destination:
        """``follows`` is the session of the response or conversation that the request goes on from.

        CWM-1001 for an id that no session can have, 1003, and what :meth:`Continuation.source` raises.
        """
        if incoming.continued is not None:
            request.require_continuable()
            destination: Destination | None = await self._continued(principal, incoming, request)
        else:
            fixed_id, own_id = self.captured.rules.fixed_id(incoming, request), incoming.session_id
            destination = None
            if fixed_id is not None or own_id is None:
                destination = await self.captured(principal, incoming, request, follows, fixed_id)
            if destination is None and own_id is not None:
                destination = await self._by_its_id(principal, incoming, request, own_id)
        return Destination() if destination is None else as_its_client_says(destination, incoming)

    async def _continued(
        self, principal: Principal, incoming: ClientRequest, request: TurnRequest
    ) -> Destination:
        source = await self.continuation.source(
            principal, incoming.continued or "", incoming.session_id, incoming.visibility
        )
        return Destination(
            source.session.id,
            Joined.CLIENT,
            session=source.session,
            source=source.turn,
            messages=await messages_of(incoming, request),
        )

    async def _by_its_id(
        self, principal: Principal, incoming: ClientRequest, request: TurnRequest, session_id: str
    ) -> Destination:
        try:
            require_session_id(session_id)
        except CwmError as error:
            await self.journal.injection(principal, "pass_through", error)
            raise
        return Destination(session_id, Joined.CLIENT, messages=await messages_of(incoming, request))
