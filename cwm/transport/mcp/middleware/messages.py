"""Makes a span of each request, by the OpenTelemetry conventions for MCP, over HTTP and stdio."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final

from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from structlog.contextvars import bound_contextvars

from cwm.domain.errors import CwmError
from cwm.ports.tracing import Carrier, Tracer, named
from cwm.transport.http.correlation import ARRIVAL, Arrival
from cwm.transport.http.request_keys import PRINCIPAL
from cwm.transport.mcp.requests.agent import Agency, Context, meta_of
from cwm.transport.mcp.requests.errors import error_of

_TOOL_CALL: Final = "tools/call"
_PROMPT: Final = "prompts/get"
# Open for as long as the client listens: a span would not end before that.
_STREAMS: Final = frozenset({"subscriptions/listen"})
_OTHER: Final = "_OTHER"
_CODE_PREFIX: Final = "CWM-"


class Messages:
    """Middleware of the low-level server that traces requests.

    The span's parent is the one that ``_meta`` names, else that of the HTTP request. Over stdio no HTTP request binds
    an id and a tenant to log lines, so this middleware binds those of the message.
    """

    def __init__(self, tracer: Tracer, agency: Agency) -> None:
        self._tracer = tracer
        self._agency = agency

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.request_id is None or ctx.method in _STREAMS:
            return await call_next(ctx)
        with ExitStack() as stack:
            if ctx.request is None:
                stack.enter_context(bound_contextvars(request_id=str(ctx.request_id)))
                # The handler refuses a caller that fails to authenticate.
                with suppress(CwmError):
                    tenant = (await self._agency.principal(ctx)).tenant
                    stack.enter_context(bound_contextvars(tenant=tenant))
            if not self._tracer.on:
                return await call_next(ctx)
            return await self._traced(ctx, call_next)

    async def _traced(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        arrival = None if ctx.request is None else ctx.request.scope.get(ARRIVAL)
        started_ns = None
        if isinstance(arrival, Arrival):
            arrival.spanned, started_ns = True, arrival.started_ns
        name, attributes = _name_and_attributes(ctx)
        with self._tracer.request(name, _carrier(meta_of(ctx)), attributes, started_ns) as span:
            try:
                result = await call_next(ctx)
            except MCPError as refused:
                status = str(refused.error.code)
                span.note({"rpc.response.status_code": status})
                span.failed(_code(refused.error.data) or status)
                raise
            # An upstream's error has no code.
            if (error := error_of(result)) is not None:
                span.failed(_code(error) or "tool_error")
            return result


def _name_and_attributes(ctx: Context) -> tuple[str, dict[str, Any]]:
    """The span's name and attributes. Of the params only a tool's or prompt's name: a resource URI may contain data."""
    method = named(ctx.method) or _OTHER
    target = named((ctx.params or {}).get("name")) if method in {_TOOL_CALL, _PROMPT} else None
    span_attributes: dict[str, Any] = {"mcp.method.name": method, "network.transport": "pipe"}
    if ctx.protocol_version:
        span_attributes["mcp.protocol.version"] = ctx.protocol_version
    if (request_id := named(str(ctx.request_id))) is not None:
        span_attributes["jsonrpc.request.id"] = request_id
    if ctx.request is not None:
        span_attributes |= {"network.transport": "tcp", "network.protocol.name": "http"}
        if (principal := ctx.request.scope.get(PRINCIPAL)) is not None:
            span_attributes["cwm.tenant"] = principal.tenant
    if method == _TOOL_CALL:
        span_attributes["gen_ai.operation.name"] = "execute_tool"
    if target is not None:
        span_attributes["gen_ai.tool.name" if method == _TOOL_CALL else "gen_ai.prompt.name"] = target
    return method if target is None else f"{method} {target}", span_attributes


def _carrier(meta: Mapping[str, Any]) -> Carrier:
    fields = {key: meta.get(key) for key in ("traceparent", "tracestate")}
    return {key: value for key, value in fields.items() if isinstance(value, str)}


def _code(error: Any) -> str | None:
    """CWM's code in a published error object; None if it has none."""
    code = named(error.get("code")) if isinstance(error, Mapping) else None
    return code if code is not None and code.startswith(_CODE_PREFIX) else None
