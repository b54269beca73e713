"""Calls of several rounds: the server asks for input, and the client calls again with that input.

The gateway stores nothing between rounds. The upstream's ``requestState`` travels through the client, sealed for the
principal, the method, the target and its arguments: any replica with the same secret can open it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp.server.request_state import RequestStateSecurity
from mcp_types import CLIENT_CAPABILITIES_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cwm.domain.principal import Principal
from cwm.transport.http.request_keys import PRINCIPAL
from cwm.transport.mcp.requests.agent import Context

_STATE_SECONDS: Final = 3600.0
"""How long a person may take to answer."""
_LABEL: Final = b"cwm/request-state"
_ROUND_FIELDS: Final = ("inputResponses", "requestState")
_CAPABILITIES: Final = ("elicitation", "sampling", "roots")
"""The capabilities that name what a client can be asked for in a round."""


def state_security(secrets: Sequence[bytes]) -> RequestStateSecurity:
    """Seals ``requestState`` with the first of ``secrets``, and opens it with any of them."""
    keys = dict.fromkeys(hmac.digest(secret, _LABEL, hashlib.sha256) for secret in secrets)
    return RequestStateSecurity(keys=list(keys), ttl=_STATE_SECONDS, bind_principal=_principal)


def takes_rounds(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def asks_for_input(answer: Mapping[str, Any]) -> bool:
    return answer.get("resultType") == "input_required"


def round_input(context: Context) -> dict[str, Any]:
    """What the client sends in this round: its input, and the opened state of the previous round."""
    params = (context.params or {}) if takes_rounds(context) else {}
    return {name: params[name] for name in _ROUND_FIELDS if params.get(name) is not None}


def usable_capabilities(context: Context, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The client capabilities that an upstream may use, in the form of ``_meta``."""
    capabilities = meta.get(CLIENT_CAPABILITIES_META_KEY)
    if not takes_rounds(context) or not isinstance(capabilities, Mapping):
        return {}
    usable = {
        name: capabilities[name] for name in _CAPABILITIES if isinstance(capabilities.get(name), Mapping)
    }
    return {CLIENT_CAPABILITIES_META_KEY: usable} if usable else {}


def _principal(context: Context) -> str | None:
    """The principal to bind the state to; None over stdio, where whoever started the process is the only client."""
    request = context.request
    if request is None:
        return None
    principal: Principal | None = request.scope.get(PRINCIPAL)
    return None if principal is None else json.dumps([principal.tenant, principal.subject])
