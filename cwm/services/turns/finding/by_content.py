"""The destination of a request that names nothing: by the answers that it carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from cwm.domain.conversation import ClientConversation, session_id_beside
from cwm.domain.principal import Principal
from cwm.domain.session import BY_CONTENT, FOUND_BY, PARENT
from cwm.domain.turn import Message, Profile
from cwm.services.turns.finding.destination import Destination, NewSession
from cwm.services.turns.finding.match_conversation import Match, MatchConversation, keys_of


@dataclass(frozen=True, slots=True)
class Carried:
    """What a request carries: its messages, and the profile of the agent that asks. ``again``: its client sends it once more."""

    messages: Sequence[Message]
    profile: Profile
    again: bool


@dataclass(frozen=True, slots=True)
class ByContent:
    match: MatchConversation

    async def __call__(
        self, principal: Principal, model: str, carried: Carried, hints: tuple[str, ...], fixed_id: str | None
    ) -> Destination:
        """The session of the match; a new one without a match, and for another agent that carries its answers. Its id begins with the ``fixed_id``."""
        keys = await keys_of(carried.messages, *hints)
        match = await self.match(principal, keys, model, carried.profile, again=carried.again)
        return replace(_destination(match, fixed_id), keys=keys, hints=hints)


def _destination(match: Match | None, fixed_id: str | None) -> Destination:
    if match is not None and not match.is_another_agent:
        return Destination(match.session.id, match.joined, session=match.session, number=match.number)
    number = uuid4().hex
    session_id = (
        f"conversation_{number[:12]}"
        if fixed_id is None
        else session_id_beside(ClientConversation(fixed_id).session_id, number)
    )
    metadata = {FOUND_BY: BY_CONTENT}
    if match is not None:
        metadata[PARENT] = match.session.id
    return Destination(session_id, is_new=True, new_session=NewSession(metadata))
