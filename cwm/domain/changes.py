"""What clients may want to hear of: lists that changed, resources that changed, agent sessions that ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

WINDOWS_URI: Final = "cwm://windows"
SESSIONS_URI: Final = "cwm://sessions"


class ChangeKind(StrEnum):
    TOOLS = "tools"
    PROMPTS = "prompts"
    RESOURCES = "resources"
    RESOURCE = "resource"
    """The content of one resource; ``Change.uri`` says which."""
    STATE = "state"
    """What is kept for an agent session changed; ``Change.agent_session`` says for which."""
    ENDED = "ended"
    """An agent session ended; ``Change.agent_session`` says which."""
    GIVEN_UP = "given_up"
    """A client of ``Change.agent_session`` wants no answer to a request any more; ``Change.uri`` is the request's id."""
    CONTENT = "content"
    """Nobody in ``Change.tenant`` holds the content any more whose digest is ``Change.uri``. Not for clients."""


@dataclass(frozen=True, slots=True)
class Change:
    """``agent_session`` is the key of the one it concerns, None for all; so is ``tenant``.

    ``uri`` is as clients see it, but for ``GIVEN_UP`` and ``CONTENT``. ``private_to`` is the key that state is
    kept under for the only one who may hear, be it an agent session or a principal without one.
    """

    kind: ChangeKind
    uri: str | None = None
    agent_session: str | None = None
    tenant: str | None = None
    private_to: str | None = None

    def concerns(self, tenant: str, agent_session: str | None, key: str | None = None) -> bool:
        """Whether one of ``tenant`` hears of it; whose agent session is not known hears all of its tenant's.

        ``key`` is the one that the listener's state is kept under.
        """
        if self.tenant not in {None, tenant} or self.private_to not in {None, key}:
            return False
        if agent_session is None:
            return self.agent_session is None or self.tenant is not None
        return self.agent_session in {None, agent_session}
