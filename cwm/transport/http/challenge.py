"""Tells refused clients which credentials would be accepted: the challenge of RFC 6750 and the metadata of RFC 9728."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cwm.domain.access import OF_AN_AGENT, spelled
from cwm.domain.errors import CwmError, ErrorKind, UnauthenticatedError

METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
MCP_PATH: Final = "/mcp"

_CACHED: Final = {"cache-control": "public, max-age=300"}


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """The gateway as an OAuth resource: ``<public_url>/mcp`` for MCP clients, ``<public_url>`` for all others.

    Without an issuer there is no authorization server to refer clients to.
    """

    public_url: str = ""
    issuer: str | None = None
    scope_prefix: str = ""

    def challenge(self, error: CwmError, path: str) -> str | None:
        """The value of ``WWW-Authenticate`` for a 401 or 403; None for errors that no credentials would avoid."""
        parameters: dict[str, str] = {}
        if error.kind is ErrorKind.UNAUTHENTICATED:
            if not isinstance(error, UnauthenticatedError) or error.why != "no_credentials":
                parameters.update(error="invalid_token", error_description=error.published)
            scopes: Iterable[str] = spelled(OF_AN_AGENT)
        elif error.kind is ErrorKind.FORBIDDEN and "required" in error.context:
            parameters.update(error="insufficient_scope", error_description=error.published)
            scopes = error.context["required"]
        else:
            return None
        parameters["scope"] = " ".join(self.scope_prefix + scope for scope in scopes)
        if self.issuer is not None:
            of_mcp = path == MCP_PATH
            parameters["resource_metadata"] = f"{self.public_url}{METADATA_PATH}{MCP_PATH if of_mcp else ''}"
        return "Bearer " + ", ".join(f'{name}="{_quoted(value)}"' for name, value in parameters.items())

    def metadata(self, resource: str) -> dict[str, Any]:
        """The metadata of RFC 9728. It omits ``admin``, because clients request every scope listed there."""
        return {
            "resource": resource,
            "authorization_servers": [self.issuer],
            "scopes_supported": [self.scope_prefix + scope for scope in spelled(OF_AN_AGENT)],
            "bearer_methods_supported": ["header"],
            "resource_name": "CWM",
        }

    def routes(self) -> list[Route]:
        """The metadata routes; none without an issuer.

        They need no credentials: clients find the authorization server by them.
        """
        if self.issuer is None:
            return []
        return [
            self._route(METADATA_PATH, self.public_url),
            self._route(METADATA_PATH + MCP_PATH, self.public_url + MCP_PATH),
        ]

    def _route(self, path: str, resource: str) -> Route:
        metadata = self.metadata(resource)

        async def serve(_: Request) -> Response:
            return JSONResponse(metadata, headers=_CACHED)

        return Route(path, serve)


def _quoted(value: str) -> str:
    return value.replace("\\", "/").replace('"', "'")
