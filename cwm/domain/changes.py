"""What clients may want to hear of: lists that changed, resources that changed, agent sessions that ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ChangeKind(StrEnum):
    TOOLS = "tools"
    PROMPTS = "prompts"
    RESOURCES = "resources"
    RESOURCE = "resource"
    """The content of one resource; ``Change.uri`` says which."""
    ENDED = "ended"
    """An agent session ended; ``Change.agent_session`` says which."""


@dataclass(frozen=True, slots=True)
class Change:
    """``agent_session`` is the key of the one it concerns, None for all. ``uri`` is as clients see it."""

    kind: ChangeKind
    uri: str | None = None
    agent_session: str | None = None
