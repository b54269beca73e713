"""Prepares what is sent to the engine, in the session of the request's destination or without one."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from cwm.domain.principal import Principal
from cwm.ports.turn_wire import TurnRequest
from cwm.services.turns.asking.enter_session import EnterSession
from cwm.services.turns.asking.in_session import InSession
from cwm.services.turns.asking.outbound import Outbound
from cwm.services.turns.asking.without_session import WithoutSession
from cwm.services.turns.finding.destination import Destination
from cwm.services.turns.finding.request import ClientRequest
from cwm.services.turns.recording.turns import RunningTurn, Turns


@dataclass(frozen=True, slots=True)
class Prepare:
    turns: Turns
    enter: EnterSession
    in_session: InSession
    without_session: WithoutSession

    async def __call__(
        self,
        principal: Principal,
        incoming: ClientRequest,
        request: TurnRequest,
        destination: Destination,
        scope: ExitStack,
    ) -> Outbound:
        """The request as it is sent, in a turn of its session if it has one. What it begins ends with ``scope``."""
        if destination.session_id is None:
            return await self.without_session(principal, request, scope)
        request.require_recordable()
        with ExitStack() as work:
            turn = work.enter_context(self.turns.begin(principal, destination.session_id))
            outbound = await self._recorded(principal, incoming, request, destination, turn, work)
            scope.push(work.pop_all())
        return replace(outbound, left=incoming.left)

    async def _recorded(
        self,
        principal: Principal,
        incoming: ClientRequest,
        request: TurnRequest,
        destination: Destination,
        turn: RunningTurn,
        work: ExitStack,
    ) -> Outbound:
        session = await self.enter.existing(principal, destination)
        identity = await self.without_session.directory.served(request.model, principal.tenant)
        if session is None:
            if identity is None:
                return await self.without_session(principal, request, work)
            await turn.require_storage(principal.subject)
            session = await self.enter.opened(principal, destination, identity.model, incoming.visibility)
        session.require_live("a turn")
        session.require_model(None if identity is None else identity.model)
        size = len(incoming.body)
        return await self.in_session(principal, session, request, destination, turn, size, work)
