"""The whole prompt of a request that has only new messages."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session
from cwm.ports.registry import Registry
from cwm.ports.turn_wire import TurnRequest
from cwm.services.turns.finding.destination import Destination
from cwm.services.turns.recording.grow import Grow, Template, template_from


@dataclass(frozen=True, slots=True)
class WholePrompt:
    registry: Registry
    grow: Grow

    async def __call__(
        self, request: TurnRequest, destination: Destination, session: Session, engine: str
    ) -> TokenIds | None:
        """The exact context of the turn that it goes on from, then the new messages rendered by the model's template on this engine. CWM-5002.

        None for a request with all messages: the engine renders them.
        """
        source = destination.source
        if source is None:
            return None
        context = await self.registry.turn_tokens(source)
        template = template_from(session.metadata)
        options = request.template_options() or template.options
        template = Template(template.has_system or bool(source.profile.system), options)
        contents = [message.content for message in destination.messages]
        return context + await self.grow.on(engine).following(session.model, contents, template, context[-1])
