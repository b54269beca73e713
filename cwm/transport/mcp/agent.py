"""Which ContextManager serves a request, and with whose credentials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastmcp.server.dependencies import get_http_request
from starlette.requests import Request

from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.ports.identity import Identity
from cwm.services.agents import Agents
from cwm.services.upstreams import CallerOf
from cwm.transport.mcp.sessions import AGENT_SESSION, PRINCIPAL

HANDLE_META: Final = "dev.cwm/agent-session"
"""Key of ``_meta`` by which a request names the agent session it belongs to."""

_LONGEST_HANDLE: Final = 128


@dataclass(frozen=True, slots=True)
class Agency:
    """Finds the ContextManager of a request: by its handle, its MCP session, or else its principal."""

    identity: Identity
    agents: Agents

    async def principal(self) -> Principal:
        """Over HTTP the session layer has authenticated the request; over stdio there is nothing to show."""
        request = _request()
        return await self.identity.authenticate({}) if request is None else request.scope[PRINCIPAL]

    async def caller(self, meta: Mapping[str, Any] | None, handle: str | None = None) -> CallerOf:
        """Raises CWM-2004 for a handle that is not one of this principal's, CWM-1003 for what is none."""
        request = _request()
        principal = await self.principal()
        given = handle if handle is not None else (meta or {}).get(HANDLE_META)
        if given is not None:
            if not isinstance(given, str) or not given or len(given) > _LONGEST_HANDLE:
                raise InvalidParameterError(
                    "agent_session: what agent_session_create returned.", field="agent_session"
                )
            agent_session: str | None = await self.agents.known(principal, given)
        else:
            agent_session = None if request is None else request.scope.get(AGENT_SESSION)
        return CallerOf(
            await self.agents.get(principal, agent_session),
            None if request is None else request.headers.get("authorization"),
        )


def _request() -> Request | None:
    try:
        return get_http_request()
    except RuntimeError:
        return None
