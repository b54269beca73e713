"""Serves the tasks of upstreams (MCP 2025-11-25): the four requests about a task, and what CWM says that it can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolRequestParams,
    CancelTaskRequestParams,
    CancelTaskResult,
    CreateTaskResult,
    GetTaskPayloadRequestParams,
    GetTaskRequestParams,
    GetTaskResult,
    InitializeResult,
    ListTasksResult,
    PaginatedRequestParams,
    ServerTasksCapability,
)
from mcp_types.methods import serialize_server_result
from pydantic import BaseModel

from cwm.domain.errors import CwmError, ErrorKind
from cwm.domain.upstream_tasks import UpstreamTask
from cwm.ports.upstream import UpstreamRefusedError
from cwm.services.upstreams.tasks import CANCEL, GET, RESULT, UpstreamTasks
from cwm.transport.mcp.mcp_server import Handler, McpFace
from cwm.transport.mcp.requests.agent import Agency, Context
from cwm.transport.mcp.requests.call import TASKS_VERSION, ToolCalls
from cwm.transport.mcp.requests.errors import error_of, protocol_error
from cwm.transport.mcp.requests.permissions import OF_UPSTREAMS, require
from cwm.transport.mcp.upstreams.crossing import refusal, valid

LIST: Final = "tasks/list"

_CAPABILITY: Final = ServerTasksCapability.model_validate(
    {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
)


class TaskRequests:
    """Handlers of the requests about tasks; each task is its owner's alone."""

    def __init__(self, face: McpFace, tasks: UpstreamTasks, agency: Agency, calls: ToolCalls) -> None:
        self._face = face
        self._tasks = tasks
        self._agency = agency
        self._calls = calls
        self._call_tool: Handler

    def install(self) -> None:
        """Add the handlers, and declare them. A result passes through the handler that calls tools as it is now."""
        server = self._face._mcp_server  # noqa: SLF001 - FastMCP publishes no seam below its components
        entry = server.get_request_handler("tools/call")
        assert entry is not None
        self._call_tool = entry.handler
        server.add_request_handler(GET, GetTaskRequestParams, self._get)
        server.add_request_handler(RESULT, GetTaskPayloadRequestParams, self._result)
        server.add_request_handler(CANCEL, CancelTaskRequestParams, self._cancel)
        server.add_request_handler(LIST, PaginatedRequestParams, self._list)
        self._face.watch_messages(_declare)

    async def _get(self, context: Context, params: GetTaskRequestParams) -> GetTaskResult:
        task = await self._task(context, params.task_id)
        with _refusals(task):
            state = await self._tasks.state(await self._agency.caller(context), task)
        return valid(GetTaskResult, task.upstream, _shown(task, state))

    async def _cancel(self, context: Context, params: CancelTaskRequestParams) -> CancelTaskResult:
        task = await self._task(context, params.task_id)
        with _refusals(task):
            state = await self._tasks.cancel(await self._agency.caller(context), task)
        return valid(CancelTaskResult, task.upstream, _shown(task, state))

    async def _list(self, context: Context, params: PaginatedRequestParams) -> ListTasksResult:
        await self._admit(context)
        with _refusals():
            page, cursor = await self._tasks.page(await self._agency.caller(context), params.cursor)
        tasks = [valid(GetTaskResult, task.upstream, _shown(task, state)) for task, state in page]
        return ListTasksResult(tasks=list(tasks), next_cursor=cursor)

    async def _result(self, context: Context, params: GetTaskPayloadRequestParams) -> dict[str, Any]:
        task = await self._task(context, params.task_id)
        principal, session = await self._agency.asking(context)
        with self._calls.reading(context, principal, session, task):
            result = await self._call_tool(context, CallToolRequestParams(name=task.tool, arguments={}))
        assert isinstance(result, BaseModel)
        if error_body := error_of(result):
            # A tool's result would say that the task failed.
            raise MCPError(INTERNAL_ERROR, str(error_body["message"]), error_body)
        answer = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return serialize_server_result("tools/call", context.protocol_version, answer)

    async def _task(self, context: Context, handle: str) -> UpstreamTask:
        await self._admit(context)
        with _refusals():
            return await self._tasks.find(await self._agency.principal(context), handle)

    async def _admit(self, context: Context) -> None:
        if context.protocol_version != TASKS_VERSION:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
        await require(self._agency, context, OF_UPSTREAMS, context.method)


async def _declare(ctx: Context, call_next: CallNext) -> HandlerResult:
    result = await call_next(ctx)
    if isinstance(result, InitializeResult) and result.protocol_version == TASKS_VERSION:
        capabilities = result.capabilities.model_copy(update={"tasks": _CAPABILITY})
        return result.model_copy(update={"capabilities": capabilities})
    return result


def begun(task: UpstreamTask, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to the call that began the task, as the client gets it."""
    client_answer = {**answer, "task": _shown(task, answer["task"])}
    result = valid(CreateTaskResult, task.upstream, client_answer)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def runs_as_none(name: str) -> MCPError:
    """The refusal of a call as a task."""
    return MCPError(METHOD_NOT_FOUND, f"Calls of {name} cannot be tasks: call it without task.")


def task_refusal(task: UpstreamTask, error: UpstreamRefusedError) -> MCPError:
    """The upstream's own error about the task, under the handle."""
    return refusal(task.upstream, UpstreamRefusedError(error.code, task.renamed(str(error)), error.data))


def _shown(task: UpstreamTask, state: Mapping[str, Any]) -> dict[str, Any]:
    client_state = task.shown(state)
    if isinstance(words := client_state.get("statusMessage"), str):
        client_state["statusMessage"] = task.renamed(words)
    return client_state


@contextmanager
def _refusals(task: UpstreamTask | None = None) -> Iterator[None]:
    """Raise the failures of the block as JSON-RPC errors; a task that there is not is one of the params."""
    try:
        yield
    except UpstreamRefusedError as error:
        assert task is not None
        raise task_refusal(task, error) from error
    except CwmError as error:
        if error.kind is ErrorKind.NOT_FOUND:
            raise protocol_error(error, INVALID_PARAMS) from error
        raise protocol_error(error) from error
