"""Change notifications: changed lists, changed resources, ended agent sessions."""

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
    """The content of one resource changed; ``Change.uri`` says which."""
    STATE = "state"
    """The stored state of an agent session changed; ``Change.agent_session`` says which session."""
    ENDED = "ended"
    """An agent session ended; ``Change.agent_session`` says which."""
    GIVEN_UP = "given_up"
    """A client of ``Change.agent_session`` cancelled a request; ``Change.uri`` is the request's id."""
    CONTENT = "content"
    """The last hold on a content in ``Change.tenant`` ended; ``Change.uri`` is its digest. Not sent to clients."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change and who may learn of it.

    ``agent_session`` is the key of the agent session concerned, None for all; ``tenant`` likewise. ``uri`` is as
    clients see it, except for ``GIVEN_UP`` and ``CONTENT``. ``private_to`` is the state key of the only listener
    that may learn of it: an agent session's, or that of a principal without one.
    """

    kind: ChangeKind
    uri: str | None = None
    agent_session: str | None = None
    tenant: str | None = None
    private_to: str | None = None

    def concerns(self, tenant: str, agent_session: str | None, key: str | None = None) -> bool:
        """Whether a listener of ``tenant`` should learn of it.

        A listener whose agent session is unknown learns of all changes in its tenant. ``key`` is the listener's
        state key.
        """
        if self.tenant not in {None, tenant} or self.private_to not in {None, key}:
            return False
        if agent_session is None:
            return self.agent_session is None or self.tenant is not None
        return self.agent_session in {None, agent_session}
