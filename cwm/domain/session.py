"""Sessions: LLM conversations run through CWM, and the states they pass through."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from cwm.domain.errors import InvalidParameterError, SessionNotActiveError
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.principal import TENANT, WORKSPACE, Principal


class SessionState(StrEnum):
    ACTIVE = "active"
    FROZEN = "frozen"
    THAWED = "thawed"
    EXPIRED = "expired"
    DELETED = "deleted"


LIVE: Final = frozenset({SessionState.ACTIVE, SessionState.THAWED})
FREEZABLE: Final = LIVE | {SessionState.EXPIRED}

OWN: Final = "cwm."
"""Key prefix of CWM's own metadata. Windows need this metadata to continue, so it outlives the session's deletion."""
BRANCHED_FROM: Final = f"{OWN}branched_from"
"""Key of the turn of another session whose context a session begins with."""
FOUND_BY: Final = "found_by"
BY_CLIENT: Final = "client"
BY_CONTENT: Final = "content"
"""How the session of a request that named none was found, in its metadata: by what was said, or else by its client's own id."""

PARENT: Final = "parent_session"
"""Key of the session whose agent set this one's to work."""


@dataclass(frozen=True, slots=True)
class SessionMark:
    """A position in the list of sessions: right after the session with this creation time and id."""

    created_at: datetime
    id: str


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Sessions in one of ``states``, of ``circles`` and of ``owner`` (of any if None), the newest first, from ``after`` on.

    ``used_since``: only those that changed from then on. ``called``: only those that have this text in their id, in one of their tags, or in the name of the client of their current turn.
    ``unlisted``: also those that a request opened and in which no turn has ended.
    """

    states: frozenset[SessionState] | None = None
    limit: int = 50
    after: SessionMark | None = None
    circles: frozenset[str] | None = None
    owner: str | None = None
    used_since: datetime | None = None
    called: str | None = None
    unlisted: bool = False


@dataclass(frozen=True, slots=True)
class SessionsSince:
    """At most ``limit`` sessions that did not change from ``since`` on, of ``tenant`` (None: of all ``but`` these).

    ``by_content``: only those that were found by what was said, or none of them.
    """

    since: datetime
    limit: int
    tenant: str | None = None
    but: frozenset[str] = frozenset()
    by_content: bool | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """The record of a conversation. Its token ids are stored separately, see ``Registry.session_tokens``.

    ``salt_scope`` is the isolation scope that its cache_salt is derived from; ``thawed_from`` names the window that
    it was thawed from and ``branch_token`` the token count at that point. ``revision`` grows by one with every
    recorded turn and prevents lost updates. ``circle`` says who may see it. ``engine`` is the name of the engine that serves it,
    where there are several; None before its first turn. Until ``moving_until`` a move to another engine holds it. A verdict said that KV which was loaded for
    ``proven_tokens`` tokens is right; ``proven_digest`` says which they were, because an edited message changes those of the session.
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
    circle: str = TENANT
    engine: str | None = None
    moving_until: datetime | None = None
    proven_tokens: int = 0
    proven_digest: str | None = None

    @property
    def keeper(self) -> Principal:
        """Who acts when CWM itself does something with the session: its owner, in its circle."""
        return Principal(self.tenant, self.owner, workspaces=frozenset({self.circle.removeprefix(WORKSPACE)}))

    @property
    def own_metadata(self) -> dict[str, Any]:
        """What CWM needs of the metadata to continue windows of this session."""
        return {name: value for name, value in self.metadata.items() if name.startswith(OWN)}

    @property
    def origin(self) -> str | None:
        """The id of the turn of another session that this one begins with, by a branch or a thaw."""
        turn_id = self.metadata.get(BRANCHED_FROM)
        return turn_id if isinstance(turn_id, str) else None

    @property
    def by_content(self) -> bool:
        """Whether its client named no conversation, and it was found by what was said."""
        return self.metadata.get(FOUND_BY) == BY_CONTENT

    @property
    def user_metadata(self) -> dict[str, Any]:
        """The metadata that was given with session_create."""
        return {name: value for name, value in self.metadata.items() if not name.startswith(OWN)}

    def proven_of(self, token_ids: TokenIds) -> int:
        """How many leading tokens of these a verdict called right."""
        count = self.proven_tokens
        if not count or len(token_ids) < count or digest(token_ids[:count]) != self.proven_digest:
            return 0
        return count

    def require_model(self, model: str | None) -> None:
        """CWM-1003 for any model but the one that the session was begun with."""
        if model != self.model:
            raise InvalidParameterError(
                f"Session '{self.id}' was begun with the model '{self.model}' and keeps it.",
                field="model",
                session_id=self.id,
                model=self.model,
            )

    def require_live(self, action: str) -> None:
        """Raise CWM-3002 unless the session accepts turns."""
        self._require(LIVE, f"{action} needs an active or thawed session.")

    def require_freezable(self) -> None:
        """Raise CWM-3002 unless the session can be frozen. An expired session can, and stays expired."""
        self._require(FREEZABLE, "a freeze needs an active, thawed or expired session.")

    def _require(self, states: frozenset[SessionState], sentence: str) -> None:
        if self.state in states:
            return
        fixes = {
            SessionState.FROZEN: " Thaw its window to go on.",
            SessionState.EXPIRED: " Freeze it and thaw the window to go on.",
        }
        raise SessionNotActiveError(
            f"Session '{self.id}' is {self.state}; {sentence}{fixes.get(self.state, '')}",
            session_id=self.id,
            state=str(self.state),
        )
