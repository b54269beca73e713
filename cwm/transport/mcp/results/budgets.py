"""Applies result budgets: a tool result within its budget passes unchanged, one over it becomes a preview."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from fastmcp.server.middleware import Middleware
from fastmcp.tools import ToolResult
from mcp_types import SERVER_INFO_META_KEY, CallToolResult
from mcp_types.version import is_version_at_least

from cwm.domain.errors import CwmError, InternalError
from cwm.domain.json_text import compact_json
from cwm.domain.tool_policy import ToolPolicy
from cwm.ports.upstream import UpstreamError
from cwm.services.agents.context_manager import ContextManager
from cwm.services.results.answers import ToolAnswer
from cwm.services.results.delivery import Call, Delivery, Shown, Weighed
from cwm.services.results.preview.plain import plain_preview
from cwm.services.results.references import ByReference, have_reference
from cwm.services.upstreams.upstreams import CallerOf
from cwm.transport.mcp.contract.tool import whole
from cwm.transport.mcp.requests.agent import CallContext, Context, NextCall
from cwm.transport.mcp.requests.call import ToolCall, tool_call
from cwm.transport.mcp.requests.errors import RefusedError, unusable_argument
from cwm.transport.mcp.results.preview_notes import META_KEY, link, meta, note
from cwm.transport.mcp.results.tools import DEFAULT_TOKENS, MIN_TOKENS
from cwm.transport.mcp.upstreams.calls import SHARED_META, tool_result
from cwm.transport.mcp.upstreams.crossing import HANDLE_ARGUMENT

_FOLLOW_UPS: Final = DEFAULT_TOKENS.keys()
_FIRST_WITH_LINKS: Final = "2025-06-18"
# These keys describe the connection, the sharing of the answer, and how FastMCP's clients unwrap it: not the result.
_NOT_THE_TOOLS: Final = frozenset({SERVER_INFO_META_KEY, SHARED_META, "fastmcp"})
_BYTES_A_TOKEN: Final = 4
_NOT_ITS_FAULT: Final = (
    "The tool did not fail, do not call it again for that: this counts as an error because its structured content "
    "could not be shown."
)


class ResultBudgets(Middleware):
    """A layer around those that call tools, so that it sees every result; CodedErrors is outside it."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    async def on_call_tool(self, context: CallContext, call_next: NextCall) -> ToolResult:
        if not self._delivery.budgets.enabled:
            return await call_next(context)
        record = tool_call()
        agent = (await _caller(record, context.message.arguments or {})).agent
        if record.name in _FOLLOW_UPS:
            context = await self._lowered(context, agent, record.policy)
        result = await call_next(context)
        if type(result) is not ToolResult:
            return result
        call = Call(agent, record.name, record.policy, context.message.arguments or {})
        try:
            return await self._within_budget(record, call, result)
        except Exception:
            logging.getLogger(__name__).exception("the budget of %s failed", record.name)
            return self._uncounted(call, result)

    async def _lowered(self, context: CallContext, agent: ContextManager, policy: ToolPolicy) -> CallContext:
        """Lower ``max_tokens`` of result_read and result_query to what the budget has left."""
        message = context.message
        arguments = dict(message.arguments or {})
        argument = whole(arguments.get("max_tokens"))
        requested = DEFAULT_TOKENS[message.name] if argument is None else argument
        allowance = await self._delivery.allowance(agent, policy)
        if allowance is None or type(requested) is not int or requested <= allowance:
            return context
        arguments["max_tokens"] = max(MIN_TOKENS, allowance)
        return context.copy(message=message.model_copy(update={"arguments": arguments}))

    async def _within_budget(self, record: ToolCall, call: Call, result: ToolResult) -> ToolResult:
        follow_up = call.tool in _FOLLOW_UPS
        answer = _answer(result, with_structured=not follow_up)
        weight = await self._delivery.weigh(call, answer)
        # result_read and result_query keep to the budget already; storing their answers too would never end.
        if weight.fits or follow_up:
            await self._delivery.whole(call, weight, follow_up=follow_up)
            return result
        outcome = await self._delivery.shown(call, answer, weight, await _output_schema(record))
        return await self._rendered(call, weight, outcome, result, record.request)

    def _uncounted(self, call: Call, result: ToolResult) -> ToolResult:
        """For a result that could not be counted. Unchanged if its bytes fit: no text has more tokens than bytes."""
        limit = call.policy.max_tokens
        answer = _answer(result, with_structured=True)
        size = len(compact_json([answer.content, answer.structured]).encode())
        if limit is None or size <= limit or call.tool in _FOLLOW_UPS:
            return result
        refusal = InternalError("The gateway failed to count it.")
        outcome = Shown(plain_preview(answer.content, answer.structured, limit), None, refusal)
        tokens, delivered_tokens = size // _BYTES_A_TOKEN, outcome.preview.account.tokens
        content = [*outcome.preview.content, note(outcome, tokens, by_reference=False)]
        is_error = _marked_as_error(content, result, outcome)
        meta_fields = {**(result.meta or {}), META_KEY: meta(outcome, tokens, delivered_tokens)}
        return _result(content, None, meta_fields, is_error=is_error)

    async def _rendered(
        self, call: Call, weight: Weighed, outcome: Shown, result: ToolResult, request: Context
    ) -> ToolResult:
        by_reference = self._delivery.budgets.some_take_references
        content = [*outcome.preview.content, note(outcome, weight.tokens, by_reference=by_reference)]
        if outcome.kept is not None and is_version_at_least(request.protocol_version, _FIRST_WITH_LINKS):
            content.append(link(outcome.kept.result))
        is_error = _marked_as_error(content, result, outcome)
        answer_sent = ToolAnswer(content, outcome.preview.structured, is_error)
        delivered_tokens = await self._delivery.tell(call, weight, answer_sent, kept=outcome.kept is not None)
        meta_fields = {**(result.meta or {}), META_KEY: meta(outcome, weight.tokens, delivered_tokens)}
        return _result(content, outcome.preview.structured, meta_fields, is_error=is_error)


class References(Middleware):
    """Replaces references in the arguments with the stored values, before any inner layer reads the arguments."""

    def __init__(self, by_reference: ByReference, delivery: Delivery) -> None:
        self._by_reference = by_reference
        self._delivery = delivery

    async def on_call_tool(self, context: CallContext, call_next: NextCall) -> ToolResult:
        message = context.message
        if not message.arguments or not have_reference(message.arguments):
            return await call_next(context)
        call = tool_call()
        try:
            caller = await call.caller()
            arguments = await self._by_reference.filled(
                caller.agent.principal,
                call.name,
                message.arguments,
                allowed=call.policy.references,
                bounds=self._delivery.budgets.references,
            )
        except CwmError as refused:
            raise RefusedError(refused) from refused
        if (refusal := unusable_argument(arguments)) is not None:
            raise RefusedError(refusal)
        return await call_next(context.copy(message=message.model_copy(update={"arguments": arguments})))


async def _caller(call: ToolCall, arguments: Mapping[str, Any]) -> CallerOf:
    """The caller as the tool will find it: for upstream tools, a handle among the arguments names the agent session."""
    handle = None if call.upstream is None else arguments.get(HANDLE_ARGUMENT)
    try:
        if isinstance(handle, str):
            # An unknown handle is the tool's own argument of that name, or a mistake that the tool will report.
            with suppress(CwmError):
                return await call.caller(handle)
        return await call.caller()
    except CwmError as refused:
        raise RefusedError(refused) from refused


async def _output_schema(call: ToolCall) -> Mapping[str, Any] | None:
    """The schema that a strict client validates the structured content against."""
    if call.upstream is None:
        return None if call.own is None else call.own.output_schema
    try:
        offer = await call.offer()
    except (CwmError, UpstreamError):
        # The upstream has just answered; its result must not be lost because the schema cannot be read now.
        return None
    return None if offer is None else offer.definition.get("outputSchema")


def _answer(result: ToolResult, *, with_structured: bool) -> ToolAnswer:
    """``result`` as an ``Answer``. Follow-ups come without structured content: their two texts repeat it."""
    content = [item.model_dump(by_alias=True, mode="json", exclude_none=True) for item in result.content]
    structured = result.structured_content if with_structured else None
    meta = {name: value for name, value in (result.meta or {}).items() if name not in _NOT_THE_TOOLS}
    return ToolAnswer(content, structured, result.is_error, meta)


def _marked_as_error(content: list[Mapping[str, Any]], result: ToolResult, outcome: Shown) -> bool:
    """Whether to mark the preview as an error: clients reject a success without the structured content of its schema."""
    if result.is_error or result.structured_content is None or outcome.preview.structured is not None:
        return result.is_error
    content.append({"type": "text", "text": _NOT_ITS_FAULT})
    return True


def _result(
    content: Sequence[Mapping[str, Any]], structured: Any, meta_fields: Mapping[str, Any], *, is_error: bool
) -> ToolResult:
    answer = {"content": content, "structuredContent": structured, "isError": is_error, "_meta": meta_fields}
    return tool_result(CallToolResult.model_validate(answer))
