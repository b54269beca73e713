"""The session of a conversation that its client names, beside what others call theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cwm.domain.conversation import session_id_beside
from cwm.domain.principal import Principal
from cwm.domain.session import Session, SessionState
from cwm.domain.visibility import Right, may
from cwm.ports.registry import Registry

_OTHER_IDS: Final = 8


@dataclass(frozen=True, slots=True)
class NamedSession:
    """The principal's id for the name, and the session, if there is one already."""

    id: str
    session: Session | None


async def named_session(registry: Registry, principal: Principal, wanted_id: str, model: str) -> NamedSession:
    """The session with the wanted id, or one beside it where that is somebody else's or not seen any more, of another model, or a deleted one's."""
    own_id, session = wanted_id, None
    for number in range(_OTHER_IDS):
        session = await registry.session(principal.tenant, own_id, any_state=True)
        if session is None or (
            is_own(principal, session)
            and session.model == model
            and session.state is not SessionState.DELETED
        ):
            break
        own_id, session = session_id_beside(wanted_id, principal.subject, model, str(number)), None
    return NamedSession(own_id, session)


def is_own(principal: Principal, session: Session) -> bool:
    return session.owner == principal.subject and may(principal, session.circle, Right.USE)
