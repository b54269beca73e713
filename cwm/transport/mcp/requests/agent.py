"""Finds the principal and the ContextManager of a request, and its credentials for upstreams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastmcp.resources import ResourceResult
from fastmcp.server.dependencies import FastMCPRequestContext
from fastmcp.server.middleware import CallNext, MiddlewareContext
from fastmcp.tools import ToolResult
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp_types import CallToolRequestParams, ReadResourceRequestParams

from cwm.domain.access import AccessScope
from cwm.domain.api_key import MARK
from cwm.domain.errors import InternalError, InvalidParameterError, SecurityError
from cwm.domain.operators import Operators
from cwm.domain.principal import Principal
from cwm.ports.identity import Identity
from cwm.services.access.refusals import Refusals
from cwm.services.access.standing import Credential, Standing
from cwm.services.agents.agents import Agents
from cwm.services.upstreams.upstreams import CallerOf
from cwm.transport.http.request_keys import AGENT_SESSION, CREDENTIAL, PRINCIPAL

HANDLE_META: Final = "dev.cwm/agent-session"
"""Key of ``_meta`` with the handle of the agent session that a request belongs to."""

_LONGEST_HANDLE: Final = 128

Context = ServerRequestContext[Any, Any]

CallContext = MiddlewareContext[CallToolRequestParams]
NextCall = CallNext[CallToolRequestParams, ToolResult]
"""What a layer around tool calls gets, and the layer inside it."""

ReadContext = MiddlewareContext[ReadResourceRequestParams]
NextRead = CallNext[ReadResourceRequestParams, ResourceResult]


@dataclass(frozen=True, slots=True)
class Agency:
    """Finds the ContextManager of a request: by its handle, else its MCP session, else its principal."""

    identity: Identity
    agents: Agents
    refusals: Refusals | None = None
    standing: Standing | None = None

    async def principal(self, context: Context | None) -> Principal:
        """The principal that makes the request, with the scopes that it has for this request.

        Over HTTP the session layer has authenticated the request; a request over stdio has no credentials.
        """
        request = None if context is None else context.request
        if request is None:
            return await self.identity.authenticate({})
        principal: Principal | None = request.scope.get(PRINCIPAL)
        if principal is None:
            raise InternalError("Nobody has authenticated the request.")
        return principal

    async def admit(
        self,
        principal: Principal,
        scopes: frozenset[AccessScope],
        where: str,
        operators: Operators | None = None,
    ) -> None:
        """Raises CWM-9002, and records it, if the principal lacks a scope, or is none of the ``operators``. ``where`` is the tool or method."""
        try:
            principal.require(scopes)
            if operators is not None:
                operators.require(principal)
        except SecurityError as refused:
            if self.refusals is not None:
                await self.refusals.note(refused, where, principal)
            raise

    async def caller(self, context: Context | None) -> CallerOf:
        """The caller of the request. CWM-2004 if the handle is not this principal's, CWM-1003 if it is malformed.

        Over stdio the connection is the agent session.
        """
        return await self.caller_of(context, *await self.asking(context))

    async def caller_of(
        self,
        context: Context | None,
        principal: Principal,
        agent_session: str | None,
        handle: str | None = None,
    ) -> CallerOf:
        """As :meth:`caller`, with the results of an earlier :meth:`asking`."""
        request = None if context is None else context.request
        effective_handle = handle if handle is not None else meta_of(context).get(HANDLE_META)
        if effective_handle is not None:
            agent_session = await self.agents.known(principal, _checked(effective_handle))
        return CallerOf(
            await self.agents.get(principal, agent_session),
            None if request is None else _to_tell(request.headers.get("authorization")),
        )

    async def asking(self, context: Context | None) -> tuple[Principal, str | None]:
        """The principal, and the agent session of the connection."""
        principal = await self.principal(context)
        request = None if context is None else context.request
        if request is not None:
            return principal, request.scope.get(AGENT_SESSION)
        return principal, None if context is None else connection_of(context).state.get(AGENT_SESSION)


def credential_of(context: Context) -> Credential | None:
    """By what the request was authenticated; None over stdio."""
    return None if context.request is None else context.request.scope.get(CREDENTIAL)


def connection_of(context: Context) -> Connection:
    """The SDK's connection, which has no public name."""
    return context.session._connection  # noqa: SLF001


def sdk_context(request: FastMCPRequestContext | None) -> Context | None:
    """The SDK's context inside FastMCP's: the only way to the connection."""
    return None if request is None else request._srctx  # noqa: SLF001


def request_of(context: MiddlewareContext[Any]) -> Context | None:
    """The request that a layer handles; None if the server itself makes the call."""
    fastmcp_context = context.fastmcp_context
    return None if fastmcp_context is None else sdk_context(fastmcp_context.request_context)


def meta_of(context: Context | None) -> Mapping[str, Any]:
    """The whole ``_meta`` of a request; the SDK's own field has only the keys that the SDK knows."""
    params = None if context is None else context.params
    meta = params.get("_meta") if params else None
    return meta if isinstance(meta, Mapping) else {}


def counted_session(context: Context, session: str | None) -> str | None:
    """The name that limits count under: the handle as sent, else the agent session of the connection.

    A handle is not looked up: an invented one never counts for anybody else.
    """
    handle = meta_of(context).get(HANDLE_META)
    return handle if isinstance(handle, str) else session


def _to_tell(authorization: str | None) -> str | None:
    """The ``Authorization`` header to send to upstreams: None for an API key, which is for CWM only."""
    is_key = authorization is not None and authorization.partition(" ")[2].lstrip().startswith(MARK)
    return None if is_key else authorization


def _checked(handle: Any) -> str:
    if isinstance(handle, str) and 0 < len(handle) <= _LONGEST_HANDLE:
        return handle
    raise InvalidParameterError("agent_session: what agent_session_create returned.", field="agent_session")
