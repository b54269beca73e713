"""The destination of a request whose client names no session of CWM."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cwm.domain.conversation import ClientConversation
from cwm.domain.principal import Principal
from cwm.ports.turn_wire import TurnRequest
from cwm.services.engines.directory import EngineDirectory
from cwm.services.turns.finding.by_content import ByContent, Carried
from cwm.services.turns.finding.by_name import ByName
from cwm.services.turns.finding.capture_rules import CaptureRules
from cwm.services.turns.finding.destination import Destination
from cwm.services.turns.finding.request import ClientRequest, is_recordable, messages_of


@dataclass(frozen=True, slots=True)
class Captured:
    rules: CaptureRules
    directory: EngineDirectory
    by_name: ByName
    by_content: ByContent

    async def __call__(
        self,
        principal: Principal,
        incoming: ClientRequest,
        request: TurnRequest,
        follows: str | None,
        fixed_id: str | None,
    ) -> Destination | None:
        """None where the request is not recorded."""
        if not self.rules.apply_to(principal, incoming, request, follows):
            return None
        identity = await self.directory.served(request.model, principal.tenant)
        if identity is None or not is_recordable(request):
            return None
        model, messages = identity.model, await messages_of(incoming, request)
        conversation = None if fixed_id is not None else incoming.conversation
        destination = None
        if conversation is not None:
            destination = await self.by_name(principal, conversation, model, messages)
        elif follows is not None:
            destination = await self.by_name.following(principal, follows, model, messages)
        conversation_id = None if request.response is None else request.response.conversation
        if destination is None and conversation_id is not None:
            destination = await self.by_name(principal, ClientConversation(conversation_id), model, ())
        if destination is None and messages:
            hints = await self.rules.hints(incoming, fixed_id)
            carried = Carried(messages, request.profile(), incoming.again)
            destination = await self.by_content(principal, model, carried, hints, fixed_id)
        if destination is None:
            return None
        return replace(destination, messages=messages, is_captured=True)
