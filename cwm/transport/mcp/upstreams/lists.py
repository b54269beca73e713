"""Lists the offers of upstream servers beside CWM's own, and serves their resources, prompts and completions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from mcp import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    GetPromptRequestParams,
    GetPromptResult,
    PromptReference,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceTemplateReference,
    SetLevelRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cwm.domain.addresses import without_addresses_in
from cwm.domain.errors import CwmError
from cwm.domain.upstream import Offer, OfferKind
from cwm.ports.upstream import UpstreamRefusedError
from cwm.services.upstreams.upstreams import Upstreams
from cwm.transport.mcp.contract.render.scalars import moment
from cwm.transport.mcp.mcp_server import Handler, McpFace
from cwm.transport.mcp.requests.agent import Agency, Context
from cwm.transport.mcp.requests.errors import protocol_error, protocol_errors
from cwm.transport.mcp.requests.insertions import insertions_of
from cwm.transport.mcp.requests.permissions import OF_UPSTREAMS, require
from cwm.transport.mcp.upstreams.crossing import (
    HANDLE_ARGUMENT,
    forwarded,
    input_request,
    refusal,
    takes_handle,
    valid,
)
from cwm.transport.mcp.upstreams.encoded import EncodedOffers, placeholder
from cwm.transport.mcp.upstreams.relay import Relay, set_log_level
from cwm.transport.mcp.upstreams.rounds import asks_for_input

ABSENT_META: Final = "dev.cwm/absent"
"""Key of a list's ``_meta`` that names the upstreams whose offers are missing, and why."""

CHANGED_META: Final = "dev.cwm/changed"
"""Key of a list's ``_meta`` that names the tools that their upstream changed, and since when."""

_HANDLE_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": "From agent_session_create: calls with the same value share this server's state.",
}
_LISTS: Final[Mapping[str, tuple[OfferKind, str]]] = {
    "tools/list": (OfferKind.TOOLS, "tools"),
    "resources/list": (OfferKind.RESOURCES, "resources"),
    "resources/templates/list": (OfferKind.TEMPLATES, "resourceTemplates"),
    "prompts/list": (OfferKind.PROMPTS, "prompts"),
}
_NO_SUGGESTIONS: Final = CompleteResult(completion=Completion(values=[]))


class UpstreamLists:
    """Handlers that add the offers of upstreams, as the upstreams define them, to FastMCP's answers."""

    def __init__(self, face: McpFace, upstreams: Upstreams, agency: Agency) -> None:
        self._face = face
        self._upstreams = upstreams
        self._agency = agency
        self._encoded = EncodedOffers()

    def install(self) -> None:
        """Replace FastMCP's handlers; the replacements still call them for CWM's own part."""
        for method in _LISTS:
            self._face.replace_handler(method, self._list)
        self._face.replace_handler("resources/read", self._read)
        self._face.replace_handler("prompts/get", self._get_prompt)
        server = self._face._mcp_server  # noqa: SLF001 - FastMCP publishes no seam below its components
        server.add_request_handler("completion/complete", CompleteRequestParams, self._complete)
        server.add_request_handler(
            "logging/setLevel", SetLevelRequestParams, partial(set_log_level, self._agency)
        )

    async def _list(self, own: Handler, context: Context, params: Any) -> Any:
        kind, field = _LISTS[context.method]
        own_list = await own(context, params)
        if not self._upstreams.names():
            return own_list
        if not (await self._agency.principal(context)).scopes >= OF_UPSTREAMS:
            return own_list
        whole_list = own_list.model_dump(by_alias=True, mode="json", exclude_none=True)
        with protocol_errors():
            offering = await self._upstreams.offering(await self._agency.caller(context), kind)
        items = await self._items(context, kind, field, list(offering.offers.values()))
        if offering.absent:
            whole_list["_meta"] = {
                **whole_list.get("_meta", {}),
                ABSENT_META: without_addresses_in(dict(offering.absent)),
            }
        if offering.changed:
            since = {name: moment(at) for name, at in offering.changed.items()}
            whole_list["_meta"] = {**whole_list.get("_meta", {}), CHANGED_META: since}
        return {**whole_list, field: [*whole_list[field], *items]}

    async def _items(
        self, context: Context, kind: OfferKind, field: str, offers: list[Offer]
    ) -> list[Mapping[str, Any]]:
        """The definitions; over HTTP a placeholder for them, since the SDK would check and encode them all for each list."""
        insertions, version = insertions_of(context), context.protocol_version
        define = partial(self._definition, context, kind)
        if insertions is None or not offers:
            return [define(offer) for offer in offers]
        item, text = placeholder(context.method, field, version)
        insertions.texts[text] = await self._encoded.text(context.method, field, version, offers, define)
        return [item]

    def _definition(self, context: Context, kind: OfferKind, offer: Offer) -> Mapping[str, Any]:
        """The offer's definition as the client's version has it. Without MCP sessions, tools of stateful upstreams also take ``agent_session``."""
        definition = offer.definition
        if kind is not OfferKind.TOOLS:
            return definition
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            # Results of these versions are objects: the SDK would reject the whole list.
            is_object = (definition.get("outputSchema") or {}).get("type") == "object"
            return definition if is_object else {k: v for k, v in definition.items() if k != "outputSchema"}
        if not takes_handle(self._upstreams, offer):
            return definition
        schema = dict(definition.get("inputSchema") or {"type": "object"})
        schema["properties"] = {**(schema.get("properties") or {}), HANDLE_ARGUMENT: _HANDLE_SCHEMA}
        return {**definition, "inputSchema": schema}

    async def _read(self, own: Handler, context: Context, params: ReadResourceRequestParams) -> Any:
        location = self._upstreams.resource(str(params.uri))
        if location is None:
            return await own(context, params)
        upstream, uri = location
        await require(self._agency, context, OF_UPSTREAMS, "resources/read")
        requested = uri, str(params.uri)
        answer = await self._ask(context, upstream, "resources/read", {"uri": uri}, requested)
        if asks_for_input(answer):
            return input_request(context, upstream, answer)
        return valid(ReadResourceResult, upstream, answer)

    async def _get_prompt(self, own: Handler, context: Context, params: GetPromptRequestParams) -> Any:
        offer = await self._prompt(context, params.name)
        if offer is None:
            return await own(context, params)
        await require(self._agency, context, OF_UPSTREAMS, "prompts/get")
        request = {"name": offer.own_name, "arguments": params.arguments or {}}
        answer = await self._ask(context, offer.upstream, "prompts/get", request)
        if asks_for_input(answer):
            return input_request(context, offer.upstream, answer)
        return valid(GetPromptResult, offer.upstream, answer)

    async def _complete(self, context: Context, params: CompleteRequestParams) -> CompleteResult:
        location = await self._reference(context, params.ref)
        if location is None:
            return _NO_SUGGESTIONS
        upstream, ref = location
        await require(self._agency, context, OF_UPSTREAMS, "completion/complete")
        request = params.model_dump(
            by_alias=True, mode="json", exclude_none=True, include={"argument", "context"}
        )
        try:
            answer = await self._ask(context, upstream, "completion/complete", {**request, "ref": ref})
        except MCPError as refused:
            if refused.code != METHOD_NOT_FOUND:
                raise
            # CWM declares completion for all upstreams together, so one without it has no suggestions.
            return _NO_SUGGESTIONS
        return valid(CompleteResult, upstream, answer)

    async def _reference(
        self, context: Context, ref: PromptReference | ResourceTemplateReference
    ) -> tuple[str, dict[str, str]] | None:
        """The upstream that offers ``ref``, and the reference under its name there; None if no upstream offers it."""
        if isinstance(ref, ResourceTemplateReference):
            location = self._upstreams.resource(ref.uri)
            return None if location is None else (location[0], {"type": ref.type, "uri": location[1]})
        offer = await self._prompt(context, ref.name)
        return None if offer is None else (offer.upstream, {"type": ref.type, "name": offer.own_name})

    async def _prompt(self, context: Context, name: str) -> Offer | None:
        with protocol_errors():
            return await self._upstreams.offer(await self._agency.caller(context), OfferKind.PROMPTS, name)

    async def _ask(
        self,
        context: Context,
        upstream: str,
        method: str,
        params: Mapping[str, Any],
        requested: tuple[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a request that may be repeated, as it only reads. Its failures are JSON-RPC errors, the only form here."""
        try:
            caller = await self._agency.caller(context)
            relay = Relay(context, upstream, caller.agent)
            answer = await self._upstreams.request(
                caller,
                upstream,
                method,
                {**params, **forwarded(context)},
                repeatable=True,
                on_log=relay.log if relay.wants_logs else None,
            )
            await relay.settled()
            return await self._upstreams.with_exposed_uris(caller, upstream, answer, requested)
        except UpstreamRefusedError as refused:
            raise refusal(upstream, refused, requested) from refused
        except CwmError as refused:
            raise protocol_error(refused) from refused
