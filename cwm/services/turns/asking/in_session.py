"""A request in its session: an engine is chosen, and the turn is recorded as asked."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.ports.turn_wire import TurnRequest
from cwm.services.engines.placement import Place
from cwm.services.turns.asking.outbound import Outbound
from cwm.services.turns.asking.special_tokens import SpecialTokens
from cwm.services.turns.asking.statement import Statements
from cwm.services.turns.asking.whole_prompt import WholePrompt
from cwm.services.turns.finding.destination import Destination
from cwm.services.turns.recording.turns import RunningTurn


@dataclass(frozen=True, slots=True)
class InSession:
    place: Place
    special_tokens: SpecialTokens
    statements: Statements
    prompt: WholePrompt

    async def __call__(
        self,
        principal: Principal,
        session: Session,
        request: TurnRequest,
        destination: Destination,
        turn: RunningTurn,
        size: int,
        work: ExitStack,
    ) -> Outbound:
        """What is sent of a request of ``size`` bytes. The engine counts it as its work until ``work`` is closed. CWM-1003, 3002, 3008, 4001, 4003, 5001, 5002."""
        directory = self.place.directory
        identity = await self.place(session, work)
        request = request.addressed_to(identity.model, identity.max_model_len, directory.switches(identity))
        prompt = await self.prompt(request, destination, session, identity.engine)
        identity.require_room(request.prompt_tokens if prompt is None else len(prompt))
        await self.special_tokens.note(principal, session, request, size, identity.engine)
        statement = await self.statements.of(destination, session, request.profile(), turn)
        salt = directory.salt(principal.tenant, session.salt_scope, identity)
        await turn.ask(
            session, statement, cache_salt=salt, block=identity.reused_block, number=destination.number
        )
        return Outbound(
            request,
            request.body(salt, weights=identity.expected, recorded=True, prompt=prompt),
            directory.engine.on(identity.engine),
            identity,
            session,
            turn,
            ids_requested=True,
            counted=True,
            abortable=directory.survives_aborts(identity),
        )
