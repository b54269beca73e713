"""A session: one LLM conversation run through CWM, and what it may become."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from cwm.domain.errors import SessionNotActiveError


class SessionState(StrEnum):
    ACTIVE = "active"
    FROZEN = "frozen"
    THAWED = "thawed"
    EXPIRED = "expired"
    DELETED = "deleted"


TRANSITIONS: Final[dict[SessionState, frozenset[SessionState]]] = {
    SessionState.ACTIVE: frozenset({SessionState.FROZEN, SessionState.EXPIRED, SessionState.DELETED}),
    SessionState.FROZEN: frozenset({SessionState.THAWED, SessionState.DELETED}),
    SessionState.THAWED: frozenset(
        {
            SessionState.ACTIVE,
            SessionState.FROZEN,
            SessionState.EXPIRED,
            SessionState.DELETED,
        }
    ),
    SessionState.EXPIRED: frozenset({SessionState.DELETED}),
    SessionState.DELETED: frozenset(),
}

LIVE: Final = frozenset({SessionState.ACTIVE, SessionState.THAWED})


@dataclass(frozen=True, slots=True)
class Session:
    """The record of a conversation. Its token ids are kept beside it, see ``Registry.session_tokens``.

    ``salt_scope`` is the isolation scope its cache_salt is derived from; ``thawed_from`` names the
    window it came from and ``branch_token`` the token count at that point. ``revision`` grows by one
    with every recorded turn and guards against lost updates.
    """

    tenant: str
    id: str
    owner: str
    model: str
    state: SessionState
    salt_scope: str
    token_count: int
    revision: int
    created_at: datetime
    updated_at: datetime
    frozen_at: datetime | None = None
    thawed_from: str | None = None
    branch_token: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def require_live(self, action: str) -> None:
        """Raise CWM-3002 unless turns and a freeze are allowed now."""
        if self.state not in LIVE:
            raise SessionNotActiveError(
                f"Session '{self.id}' is {self.state}; {action} needs an active or thawed session."
                + (" Thaw its window to go on." if self.state is SessionState.FROZEN else ""),
                session_id=self.id,
                state=str(self.state),
            )
