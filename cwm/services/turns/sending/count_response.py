"""Counts the tokens of what a request for a response sends to a model."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from cwm.domain.principal import Principal
from cwm.services.turns.finding.request import ClientRequest
from cwm.services.turns.sending.pass_through import PassThrough


@dataclass(frozen=True, slots=True)
class CountResponse:
    pass_through: PassThrough

    async def __call__(self, principal: Principal, incoming: ClientRequest) -> int:
        """The tokens of the prompt, with all that the request goes on from. Nothing is generated, and it costs no tokens.

        CWM-1003, 1004, 1005, 2008, 2009, 3010, 5001, 5002. An engine without ``--enable-scale-out`` cannot count: CWM-5002.
        """
        sending = self.pass_through
        with ExitStack() as scope:
            request = await sending.read(principal, incoming)
            if (ask := request.response) is not None:
                scope.callback(sending.let_go, principal, ask)
            request, _ = await sending.responses.resolved(principal, request)
            await request.require_media(principal)
            outbound = await sending.prepare.without_session.counted(principal, request)
            return len(await outbound.engine.rendered(incoming.path, outbound.body))
