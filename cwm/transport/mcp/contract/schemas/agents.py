"""The answers of the tools for agent sessions."""

from __future__ import annotations

from typing_extensions import TypedDict


class AgentSessionCreated(TypedDict):
    success: bool
    agent_session: str
    expires_in_seconds: float


class AgentSessionEnded(TypedDict):
    success: bool
    agent_session: str
