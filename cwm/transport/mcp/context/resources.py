"""Shared context as resources: one for each key, and one for each key prefix."""

from __future__ import annotations

import inspect
import json
from typing import Final

from fastmcp.resources.template import ResourceTemplate
from fastmcp.server.dependencies import get_context

from cwm.domain.errors import InvalidParameterError
from cwm.domain.shared_context import ANY_SUFFIX, SCOPE_PATTERN, named_by, scope_of
from cwm.services.context.shared_context import MAX_PAGE
from cwm.transport.mcp.context import render as render_context
from cwm.transport.mcp.mcp_server import CALLER, Caller
from cwm.transport.mcp.requests.agent import sdk_context

_TEMPLATE: Final = "cwm://context/{scope}/{key*}"
_JSON: Final = "application/json"


async def context(scope: str, key: str, caller: Caller = CALLER) -> str:  # noqa: ARG001 - the template has them
    """A key of shared context, in the form of context_get's answer; subscribers are notified of writes and deletes.

    A URI that ends with an asterisk, as in cwm://context/tenant/files/*, stands for all keys with that prefix:
    it reads as context_list's answer for the first 1000 of them, and its subscribers are notified of each write
    to any of them. Write an asterisk that is part of a key as %2A. The scope session is the caller's own private
    scope.
    """
    target = named_by(_requested_uri())
    if target is None:
        raise InvalidParameterError(f"scope: must match {SCOPE_PATTERN}.", field="uri")
    name, key_in_uri = target
    context_scope = scope_of(caller.principal.tenant, caller.agent.key, name)
    shared = caller.services.shared_context
    if key_in_uri.endswith(ANY_SUFFIX) and _requested_uri().endswith(ANY_SUFFIX):
        page = await shared.list(context_scope, key_in_uri.removesuffix(ANY_SUFFIX), None, MAX_PAGE)
        return json.dumps(render_context.keys(context_scope, page))
    return json.dumps(
        render_context.value(context_scope, key_in_uri, await shared.get(context_scope, key_in_uri))
    )


def context_templates() -> list[ResourceTemplate]:
    return [
        ResourceTemplate.from_function(
            context,
            _TEMPLATE,
            name="context",
            title="Shared context",
            description=inspect.getdoc(context),
            mime_type=_JSON,
            security=None,
        )
    ]


def _requested_uri() -> str:
    """The URI as the client sent it: once decoded, %2A and the asterisk of a prefix are the same."""
    request = sdk_context(get_context().request_context)
    params = None if request is None else request.params
    return str(params.get("uri", "")) if params else ""
