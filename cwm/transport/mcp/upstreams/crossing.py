"""Which request and answer fields are forwarded between a client and an upstream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from mcp import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    InputRequiredResult,
    Result,
)
from pydantic import ValidationError

from cwm.domain.addresses import without_inner_addresses
from cwm.domain.upstream import Offer
from cwm.domain.upstream_uris import ServedUris
from cwm.ports.upstream import UpstreamRefusedError
from cwm.services.upstreams.upstreams import Upstreams
from cwm.transport.mcp.requests.agent import Context, meta_of
from cwm.transport.mcp.requests.errors import unusable
from cwm.transport.mcp.upstreams.rounds import round_input, takes_rounds, usable_capabilities

HANDLE_ARGUMENT: Final = "agent_session"

# These describe one connection, the client's or the upstream's, and are never forwarded.
_OF_A_CONNECTION: Final = frozenset(
    {
        PROTOCOL_VERSION_META_KEY,
        CLIENT_INFO_META_KEY,
        CLIENT_CAPABILITIES_META_KEY,
        SERVER_INFO_META_KEY,
        "progressToken",
    }
)
# Keys that only CWM sets for its clients; an upstream that set them would pass for CWM.
_OWN_PREFIX: Final = "dev.cwm/"
_Result = TypeVar("_Result", bound=Result)


def takes_handle(upstreams: Upstreams, offer: Offer) -> bool:
    """Whether CWM adds ``agent_session``: the upstream has sessions per agent, and the tool's schema nowhere has that name."""
    if upstreams.is_shared(offer.upstream):
        return False
    return f'"{HANDLE_ARGUMENT}"' not in json.dumps(offer.definition.get("inputSchema"))


def forwarded(context: Context) -> dict[str, Any]:
    """The request's fields to forward beside its own parameters, without those that describe the client's connection.

    Raises MCPError if no upstream can take them.
    """
    meta = meta_of(context)
    meta_fields = {name: value for name, value in meta.items() if _is_forwarded(name)}
    meta_fields |= usable_capabilities(context, meta)
    fields = {**round_input(context), "_meta": meta_fields} if meta_fields else round_input(context)
    if (fault := unusable(fields)) is not None:
        raise MCPError(INVALID_PARAMS, f"The request {fault}.")
    return fields


def _is_forwarded(name: str) -> bool:
    return name not in _OF_A_CONNECTION and not name.startswith(_OWN_PREFIX)


def _forwardable(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The upstream's answer without the keys of ``_meta`` that are never forwarded."""
    meta = answer.get("_meta")
    if not isinstance(meta, Mapping) or all(map(_is_forwarded, meta)):
        return answer
    others = {name: value for name, value in answer.items() if name != "_meta"}
    meta_fields = {name: value for name, value in meta.items() if _is_forwarded(name)}
    return {**others, "_meta": meta_fields} if meta_fields else others


def refusal(upstream: str, error: UpstreamRefusedError, requested: tuple[str, str] | None = None) -> MCPError:
    """The upstream's own error, with its name. ``requested``: the upstream's own URI that was asked for, and the client's."""
    data = error.data
    if isinstance(data, Mapping) and isinstance(uri := data.get("uri"), str):
        data = {**data, "uri": ServedUris(upstream, requested=requested).exposed(uri)}
    return MCPError(error.code, f"Upstream {upstream}: {without_inner_addresses(str(error))}", data)


def input_request(context: Context, upstream: str, answer: Mapping[str, Any]) -> InputRequiredResult:
    if not takes_rounds(context):
        raise MCPError(
            INVALID_PARAMS,
            f"Upstream {upstream} asks for input, which only a client of 2026-07-28 can give.",
        )
    return valid(InputRequiredResult, upstream, answer)


def valid(result: type[_Result], upstream: str, answer: Mapping[str, Any]) -> _Result:
    try:
        return result.model_validate(_forwardable(answer))
    except ValidationError:
        raise invalid(upstream) from None


def invalid(upstream: str) -> MCPError:
    return MCPError(INTERNAL_ERROR, f"Upstream {upstream} sent an answer that is not valid MCP.")
