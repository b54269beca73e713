"""Calls the tools of upstream servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastmcp import Context
from fastmcp.server.middleware import Middleware
from fastmcp.tools import ToolResult
from fastmcp.tools.base import InputRequiredToolResult
from mcp_types import CallToolResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cwm.domain.errors import CwmError
from cwm.domain.upstream import Offer, may_repeat, runs_as_task
from cwm.domain.upstream_tasks import UpstreamTask, related_to
from cwm.ports.upstream import UpstreamRefusedError
from cwm.services.upstreams.shared_answers import SharedAnswers
from cwm.services.upstreams.tasks import RESULT, UpstreamTasks
from cwm.services.upstreams.upstreams import CallerOf, Upstreams
from cwm.transport.mcp.requests.agent import CallContext, NextCall, meta_of, sdk_context
from cwm.transport.mcp.requests.call import ToolCall, tool_call
from cwm.transport.mcp.requests.errors import RefusedError
from cwm.transport.mcp.upstreams.crossing import (
    HANDLE_ARGUMENT,
    forwarded,
    input_request,
    invalid,
    refusal,
    takes_handle,
    valid,
)
from cwm.transport.mcp.upstreams.relay import Relay
from cwm.transport.mcp.upstreams.rounds import asks_for_input, round_input
from cwm.transport.mcp.upstreams.tasks import begun, runs_as_none, task_refusal

SHARED_META: Final = "dev.cwm/shared"
"""Key of a result's ``_meta`` that says that the answer was made for another call, and how long ago."""


class UpstreamCalls(Middleware):
    """Forwards calls to upstream tools. As a layer, so that the outer layers treat their results like CWM's own."""

    def __init__(self, upstreams: Upstreams, answers: SharedAnswers, tasks: UpstreamTasks) -> None:
        self._upstreams = upstreams
        self._answers = answers
        self._tasks = tasks

    async def on_call_tool(self, context: CallContext, call_next: NextCall) -> ToolResult:
        call, face = tool_call(), context.fastmcp_context
        if call.upstream is None or face is None:
            if call.task is not None and call.own is not None:
                raise runs_as_none(call.name)
            return await call_next(context)
        try:
            result = await self._call(face, call, dict(context.message.arguments or {}))
        except CwmError as refused:
            raise RefusedError(refused) from refused
        except UpstreamRefusedError as refused:
            if call.result_of is not None:
                raise task_refusal(call.result_of, refused) from refused
            raise refusal(call.upstream, refused) from refused
        return result if result is not None else await call_next(context)

    async def _call(self, face: Context, call: ToolCall, arguments: dict[str, Any]) -> ToolResult | None:
        # The record has the request as it came; in this one the SDK has opened the state of the previous round.
        request, handle = sdk_context(face.request_context) or call.request, arguments.get(HANDLE_ARGUMENT)
        caller = await call.caller()
        offer = await call.offer()
        if offer is None:
            return None
        # For a client of an earlier era it is the tool's own argument: CWM lists none for it.
        is_modern = request.protocol_version in MODERN_PROTOCOL_VERSIONS
        if isinstance(handle, str) and is_modern and takes_handle(self._upstreams, offer):
            del arguments[HANDLE_ARGUMENT]
            caller = await call.caller(handle)
        wants_progress = meta_of(request).get("progressToken") is not None
        relay = Relay(request, offer.upstream, caller.agent, face if wants_progress else None)
        task = call.result_of
        method, params = (
            ("tools/call", {"name": offer.own_name, "arguments": arguments, **forwarded(request)})
            if task is None
            else (RESULT, {"taskId": task.task_id, **forwarded(request)})
        )

        async def ask(**more: Any) -> dict[str, Any]:
            answer = await self._upstreams.request(
                caller,
                offer.upstream,
                method,
                {**params, **more},
                repeatable=task is not None or may_repeat(offer.definition),
                on_progress=relay.progress if wants_progress else None,
                on_log=relay.log if relay.wants_logs else None,
                resume=None if task is None else task.session,
            )
            await relay.settled()
            return answer

        if call.task is not None:
            return await self._begin(caller, call, offer, ask)
        shared_answer = await self._answers.call(
            caller,
            offer,
            None if task is not None else call.policy.cache,
            arguments,
            ask,
            alone=bool(round_input(request)),
        )
        answer = await self._upstreams.with_exposed_uris(caller, offer.upstream, shared_answer.answer)
        if asks_for_input(answer):
            return InputRequiredToolResult(input_request(request, offer.upstream, answer))
        if task is not None:
            await self._tasks.read(task, answer)
            answer = related_to(task, answer)
        return _result(offer.upstream, answer, shared_answer.age_seconds)

    async def _begin(
        self, caller: CallerOf, call: ToolCall, offer: Offer, ask: Callable[..., Awaitable[dict[str, Any]]]
    ) -> ToolResult:
        """Call the tool as a task. An upstream that answers with the result has run it as none."""
        if not runs_as_task(offer.definition):
            raise runs_as_none(call.name)
        task: UpstreamTask | None = None
        ttl_ms = (call.task or {}).get("ttl")

        async def begin() -> dict[str, Any]:
            nonlocal task
            task, answer = await self._tasks.begin(
                caller, offer.upstream, call.name, ttl_ms, lambda wanted: ask(task=wanted)
            )
            return answer

        shared_answer = await self._answers.call(caller, offer, None, {}, begin)
        if task is None and "task" in shared_answer.answer:
            raise invalid(offer.upstream)
        if task is None:
            answer = await self._upstreams.with_exposed_uris(caller, offer.upstream, shared_answer.answer)
            return _result(offer.upstream, answer, shared_answer.age_seconds)
        call.begun.update(begun(task, shared_answer.answer))
        return _Begun(content=[])


class _Begun(ToolResult):
    """Stands for the answer that has begun a task: no result, so that no budget applies."""


def _result(upstream: str, answer: dict[str, Any], age_seconds: float | None) -> ToolResult:
    result = valid(CallToolResult, upstream, {"content": [], **answer})
    if age_seconds is not None:
        age = {SHARED_META: {"age_seconds": round(age_seconds, 3)}}
        result = result.model_copy(update={"meta": {**(result.meta or {}), **age}})
    return tool_result(result)


def tool_result(result: CallToolResult) -> ToolResult:
    """The result without FastMCP's slow copy and its rule for structured content, which may be any value since 2026-07-28."""
    structured = result.structured_content
    if structured is None:
        return ToolResult.from_mcp_result(result)
    wrapped = ToolResult(content=result.content, meta=result.meta, is_error=result.is_error)
    wrapped.structured_content = structured
    wrapped._raw_mcp_result = result  # noqa: SLF001 - only from_mcp_result sets it
    return wrapped
