"""Upstream servers' tools, resources and prompts, beside our own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from fastmcp import Context
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import ToolResult
from fastmcp.tools.base import InputRequiredToolResult
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    PaginatedRequestParams,
    PromptReference,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceTemplateReference,
    Result,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import to_json

from cwm.domain.errors import CwmError, InsufficientScopeError, InternalError
from cwm.domain.upstream import Kind, Offer, exposed_uri, may_repeat, with_exposed_uris
from cwm.ports.upstream import UpstreamRefusedError
from cwm.services.shared_answers import Given, SharedAnswers
from cwm.services.upstreams import Upstreams
from cwm.transport.mcp.agent import Agency, meta_of, request_of
from cwm.transport.mcp.errors import RefusedError
from cwm.transport.mcp.face import McpFace
from cwm.transport.mcp.permissions import OF_UPSTREAMS, protocol_error
from cwm.transport.mcp.rounds import asks_for_input, can_be_asked, given_now, takes_rounds

ABSENT_META: Final = "dev.cwm/absent"
"""Key of a list's ``_meta``: the upstreams whose part is missing, and why."""

SHARED_META: Final = "dev.cwm/shared"
"""Key of a result's ``_meta``: it was made for another call, so long ago."""

HANDLE_ARGUMENT: Final = "agent_session"

_HANDLE_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": "From agent_session_create: calls with the same one share this server's state.",
}
# These describe one connection, ours or the upstream's, and never cross from one to the other.
_OF_A_CONNECTION: Final = frozenset(
    {
        PROTOCOL_VERSION_META_KEY,
        CLIENT_INFO_META_KEY,
        CLIENT_CAPABILITIES_META_KEY,
        SERVER_INFO_META_KEY,
        "progressToken",
    }
)
# What CWM says itself, to its own clients; an upstream that says such things would be taken for it.
_OURS: Final = "dev.cwm/"
_LISTS: Final[Mapping[str, tuple[Kind, str]]] = {
    "tools/list": (Kind.TOOLS, "tools"),
    "resources/list": (Kind.RESOURCES, "resources"),
    "resources/templates/list": (Kind.TEMPLATES, "resourceTemplates"),
    "prompts/list": (Kind.PROMPTS, "prompts"),
}

_Result = TypeVar("_Result", bound=Result)
_Handler = Callable[[ServerRequestContext[Any, Any], Any], Awaitable[Any]]


class UpstreamCalls(Middleware):
    """Passes calls of upstream tools on. Within the chain, so that what holds for every result holds for theirs."""

    def __init__(self, upstreams: Upstreams, answers: SharedAnswers, agency: Agency) -> None:
        self._upstreams = upstreams
        self._answers = answers
        self._agency = agency

    async def on_call_tool(
        self,
        context: MiddlewareContext[CallToolRequestParams],
        call_next: CallNext[CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        name = context.message.name
        if name.partition("_")[0] not in self._upstreams.names():
            return await call_next(context)
        asked, request = context.fastmcp_context, request_of(context)
        if asked is None or request is None:
            raise RefusedError(InternalError("A call without a request."))
        try:
            result = await self._call(asked, request, name, dict(context.message.arguments or {}))
        except CwmError as refused:
            raise RefusedError(refused) from refused
        except UpstreamRefusedError as refused:
            raise MCPError(refused.code, str(refused), refused.data) from refused
        return result if result is not None else await call_next(context)

    async def _call(
        self, asked: Context, request: ServerRequestContext[Any, Any], name: str, arguments: dict[str, Any]
    ) -> ToolResult | None:
        meta = meta_of(request)
        handle = arguments.get(HANDLE_ARGUMENT) if isinstance(arguments.get(HANDLE_ARGUMENT), str) else None
        caller = await self._agency.caller(request)
        offer = await self._upstreams.tool(caller, name)
        if offer is None:
            return None
        if handle is not None and _takes_handle(self._upstreams, offer):
            del arguments[HANDLE_ARGUMENT]
            caller = await self._agency.caller(request, handle)
        relay = _Relay(asked) if meta.get("progressToken") is not None else None
        params = {"name": offer.own_name, "arguments": arguments, **_forwarded(request)}

        async def ask() -> dict[str, Any]:
            answer = await self._upstreams.request(
                caller,
                offer.upstream,
                "tools/call",
                params,
                repeatable=may_repeat(offer.definition),
                on_progress=relay,
            )
            if relay is not None:
                await relay.told()
            return answer

        given = await self._answers.call(caller, offer, name, arguments, ask, alone=bool(given_now(request)))
        if asks_for_input(given.answer):
            return InputRequiredToolResult(_asked_for(request, offer.upstream, given.answer))
        return _result(offer.upstream, given)


class UpstreamLists:
    """Handlers that add what upstreams offer to what FastMCP answers, as the upstreams spelled it."""

    def __init__(self, face: McpFace, upstreams: Upstreams, agency: Agency) -> None:
        self._face = face
        self._upstreams = upstreams
        self._agency = agency

    def install(self) -> None:
        """Take the place of FastMCP's own handlers, which go on to answer for our part."""
        server = self._face._mcp_server  # noqa: SLF001 - FastMCP publishes no seam below its components
        own: dict[str, tuple[Any, _Handler]] = {
            "tools/list": (PaginatedRequestParams, self._face._on_list_tools),  # noqa: SLF001
            "resources/list": (PaginatedRequestParams, self._face._on_list_resources),  # noqa: SLF001
            "resources/templates/list": (
                PaginatedRequestParams,
                self._face._on_list_resource_templates,  # noqa: SLF001
            ),
            "prompts/list": (PaginatedRequestParams, self._face._on_list_prompts),  # noqa: SLF001
        }
        for method, (params, handler) in own.items():
            server.add_request_handler(method, params, self._listing(method, handler))
        server.add_request_handler(
            "resources/read",
            ReadResourceRequestParams,
            self._reading(self._face._on_read_resource),  # noqa: SLF001
        )
        server.add_request_handler(
            "prompts/get",
            GetPromptRequestParams,
            self._prompting(self._face._on_get_prompt),  # noqa: SLF001
        )
        server.add_request_handler(
            "completion/complete",
            CompleteRequestParams,
            self._completing(self._face._on_complete),  # noqa: SLF001
        )

    def _listing(self, method: str, own: _Handler) -> _Handler:
        kind, field = _LISTS[method]

        async def listed(context: ServerRequestContext[Any, Any], params: Any) -> Any:
            ours = await own(context, params)
            if not self._upstreams.names():
                return ours
            if not (await self._agency.principal(context)).scopes >= OF_UPSTREAMS:
                return ours
            told = ours.model_dump(by_alias=True, mode="json", exclude_none=True)
            try:
                offering = await self._upstreams.offering(await self._agency.caller(context), kind)
            except CwmError as refused:
                raise MCPError(INTERNAL_ERROR, refused.message, refused.as_dict()) from refused
            shown = [self._shown(context, kind, offer) for offer in offering.offers.values()]
            if offering.absent:
                told["_meta"] = {**told.get("_meta", {}), ABSENT_META: dict(offering.absent)}
            return {**told, field: [*told[field], *shown]}

        return listed

    def _shown(self, context: ServerRequestContext[Any, Any], kind: Kind, offer: Offer) -> Mapping[str, Any]:
        """A client without MCP sessions is told how to keep a stateful upstream's state together."""
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        if kind is not Kind.TOOLS or not modern or not _takes_handle(self._upstreams, offer):
            return offer.definition
        schema = dict(offer.definition.get("inputSchema") or {"type": "object"})
        schema["properties"] = {**schema.get("properties", {}), HANDLE_ARGUMENT: _HANDLE_SCHEMA}
        return {**offer.definition, "inputSchema": schema}

    def _reading(self, own: _Handler) -> _Handler:
        async def read(context: ServerRequestContext[Any, Any], params: ReadResourceRequestParams) -> Any:
            found = self._upstreams.resource(str(params.uri))
            if found is None:
                return await own(context, params)
            upstream, uri = found
            await self._require(context, "resources/read")
            answer = await self._ask(context, upstream, "resources/read", {"uri": uri})
            if asks_for_input(answer):
                return _asked_for(context, upstream, answer)
            contents = [
                {**each, "uri": exposed_uri(upstream, str(each["uri"]))} for each in answer["contents"]
            ]
            return _valid(ReadResourceResult, upstream, {**answer, "contents": contents})

        return read

    def _prompting(self, own: _Handler) -> _Handler:
        async def prompt(context: ServerRequestContext[Any, Any], params: GetPromptRequestParams) -> Any:
            offer = await self._prompt(context, params.name)
            if offer is None:
                return await own(context, params)
            await self._require(context, "prompts/get")
            asked = {"name": offer.own_name, "arguments": params.arguments or {}}
            answer = await self._ask(context, offer.upstream, "prompts/get", asked)
            if asks_for_input(answer):
                return _asked_for(context, offer.upstream, answer)
            messages = [
                {**each, "content": with_exposed_uris(offer.upstream, [each["content"]])[0]}
                for each in answer["messages"]
            ]
            return _valid(GetPromptResult, offer.upstream, {**answer, "messages": messages})

        return prompt

    def _completing(self, own: _Handler) -> _Handler:
        async def complete(context: ServerRequestContext[Any, Any], params: CompleteRequestParams) -> Any:
            found = await self._reference(context, params.ref)
            if found is None:
                return await own(context, params)
            upstream, ref = found
            await self._require(context, "completion/complete")
            asked = params.model_dump(
                by_alias=True, mode="json", exclude_none=True, include={"argument", "context"}
            )
            try:
                answer = await self._ask(context, upstream, "completion/complete", {**asked, "ref": ref})
            except MCPError as refused:
                if refused.code != METHOD_NOT_FOUND:
                    raise
                # We complete for all upstreams, or for none: one that does not is one that knows of nothing.
                answer = {"completion": {"values": []}}
            return _valid(CompleteResult, upstream, answer)

        return complete

    async def _reference(
        self, context: ServerRequestContext[Any, Any], ref: PromptReference | ResourceTemplateReference
    ) -> tuple[str, dict[str, str]] | None:
        """The upstream that offers it, and what it is called there; None for what no upstream offers."""
        if isinstance(ref, ResourceTemplateReference):
            found = self._upstreams.resource(ref.uri)
            return None if found is None else (found[0], {"type": ref.type, "uri": found[1]})
        offer = await self._prompt(context, ref.name)
        return None if offer is None else (offer.upstream, {"type": ref.type, "name": offer.own_name})

    async def _prompt(self, context: ServerRequestContext[Any, Any], name: str) -> Offer | None:
        try:
            return await self._upstreams.prompt(await self._agency.caller(context), name)
        except CwmError as refused:
            raise MCPError(INTERNAL_ERROR, refused.message, refused.as_dict()) from refused

    async def _require(self, context: ServerRequestContext[Any, Any], method: str) -> None:
        try:
            await self._agency.require(context, OF_UPSTREAMS, method)
        except InsufficientScopeError as refused:
            raise protocol_error(refused) from refused

    async def _ask(
        self, context: ServerRequestContext[Any, Any], upstream: str, method: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Reads may be repeated. Failures are JSON-RPC errors: these methods have no other."""
        try:
            caller = await self._agency.caller(context)
            return await self._upstreams.request(
                caller, upstream, method, {**params, **_forwarded(context)}, repeatable=True
            )
        except UpstreamRefusedError as refused:
            raise MCPError(refused.code, str(refused), refused.data) from refused
        except CwmError as refused:
            raise MCPError(INTERNAL_ERROR, refused.message, refused.as_dict()) from refused


def _takes_handle(upstreams: Upstreams, offer: Offer) -> bool:
    """Where it makes a difference, and the tool has no argument of that name itself."""
    schema = offer.definition.get("inputSchema") or {}
    return not upstreams.is_shared(offer.upstream) and HANDLE_ARGUMENT not in schema.get("properties", {})


def _forwarded(context: ServerRequestContext[Any, Any]) -> dict[str, Any]:
    """What the request says beside what it asks for; not what it says of the connection that it came by."""
    meta = meta_of(context)
    kept = {name: value for name, value in meta.items() if _crosses(name)}
    kept |= can_be_asked(context, meta)
    return {**given_now(context), "_meta": kept} if kept else given_now(context)


def _crosses(name: str) -> bool:
    return name not in _OF_A_CONNECTION and not name.startswith(_OURS)


def _crossing(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer as the upstream gave it, but for what in its ``_meta`` is not its own to say."""
    meta = answer.get("_meta")
    if not isinstance(meta, Mapping) or all(map(_crosses, meta)):
        return answer
    others = {name: value for name, value in answer.items() if name != "_meta"}
    kept = {name: value for name, value in meta.items() if _crosses(name)}
    return {**others, "_meta": kept} if kept else others


def _asked_for(
    context: ServerRequestContext[Any, Any], upstream: str, answer: Mapping[str, Any]
) -> InputRequiredResult:
    if not takes_rounds(context):
        raise MCPError(
            INVALID_PARAMS,
            f"Upstream {upstream} asks for input, which only a client of 2026-07-28 can be asked for.",
        )
    return _valid(InputRequiredResult, upstream, answer)


class _Relay:
    """Tells the caller of an upstream's progress, in order and before the answer."""

    def __init__(self, asked: Context) -> None:
        self._asked = asked
        # FastMCP looks up whom to tell in the running context, which is not the caller's when a program speaks.
        self._context = contextvars.copy_context()
        self._last: asyncio.Task[None] | None = None

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        telling = self._tell(self._last, progress, total, message)
        self._last = asyncio.create_task(telling, context=self._context)
        await asyncio.wait({self._last})

    async def told(self) -> None:
        if self._last is not None:
            await asyncio.wait({self._last})

    async def _tell(
        self, before: asyncio.Task[None] | None, progress: float, total: float | None, message: str | None
    ) -> None:
        if before is not None:
            await asyncio.wait({before})
        # A caller that is gone is told nothing, and misses nothing.
        with contextlib.suppress(Exception):
            await self._asked.report_progress(progress, total, message)


def _result(upstream: str, given: Given) -> ToolResult:
    content = with_exposed_uris(upstream, list(given.answer.get("content", ())))
    result = _valid(CallToolResult, upstream, {**given.answer, "content": content})
    if given.age_seconds is not None:
        told = {SHARED_META: {"age_seconds": round(given.age_seconds, 3)}}
        result = result.model_copy(update={"meta": {**(result.meta or {}), **told}})
    return _wrapped(result)


def _wrapped(result: CallToolResult) -> ToolResult:
    """FastMCP makes all structured content anew, which takes long, to refuse numbers that JSON has not."""
    structured = result.structured_content
    if not isinstance(structured, dict):
        return ToolResult.from_mcp_result(result)
    spelled = to_json(structured, inf_nan_mode="constants")
    if b"NaN" in spelled or b"Infinity" in spelled:
        return ToolResult.from_mcp_result(result)
    wrapped = ToolResult(content=result.content, meta=result.meta, is_error=result.is_error)
    wrapped.structured_content = structured
    wrapped._raw_mcp_result = result  # noqa: SLF001 - only from_mcp_result sets it
    return wrapped


def _valid(result: type[_Result], upstream: str, answer: Mapping[str, Any]) -> _Result:
    try:
        return result.model_validate(_crossing(answer))
    except ValidationError:
        raise MCPError(INTERNAL_ERROR, f"Upstream {upstream} answered something that is not MCP.") from None
