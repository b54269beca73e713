"""Tasks of MCP 2025-11-25 for the upstream server of tests; the SDK has none of its own for a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from fastmcp import FastMCP
from mcp import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, InitializeResult, ServerTasksCapability

from tests.transport.mcp.upstream_server import session_of

SUPPORT = {"dig": "optional", "only_dig": "required", "ask": "optional"}
CAPABILITY = ServerTasksCapability.model_validate(
    {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
)
RELATED = "io.modelcontextprotocol/related-task"
TEXT = {
    "content": [{"type": "text", "text": "gold"}],
    "structuredContent": {"result": "gold"},
    "isError": False,
}


@dataclass(slots=True)
class RunningTask:
    """``session``: the one that it is bound to, as the reference SDK's are; None if any may ask for it."""

    state: dict[str, Any]
    tool: str
    session: str | None
    result: dict[str, Any] = field(default_factory=dict)
    error: MCPError | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class TaskUpstream:
    """Begins tasks and ends them when the test says so, or ``at_once``. ``asked``: the methods about tasks that arrived, with their params."""

    declares: bool = True
    at_once: bool = False
    id_chars: int = 32
    tasks: dict[str, RunningTask] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def add_to(self, server: FastMCP[Any]) -> None:
        @server.tool
        def dig(depth: int = 1) -> str:
            """Dig."""
            return f"dug {depth} straight"

        @server.tool
        def only_dig() -> str:
            """Dig, as a task only."""
            return "never"

        @server.tool
        def ask() -> str:
            """Ask the user something on the way."""
            return "asked nothing"

        server._mcp_server.middleware.insert(0, self._on_message)

    @property
    def one(self) -> RunningTask:
        (task,) = self.tasks.values()
        return task

    def end(self, result: dict[str, Any] | MCPError = TEXT, status: str = "completed") -> None:
        """End the one task."""
        task = self.one
        if isinstance(result, MCPError):
            task.error = result
        else:
            task.result = result
        self._move(task, status)

    async def _on_message(self, ctx: Any, call_next: Any) -> Any:
        params = dict(ctx.params or {})
        if ctx.method == "tools/call" and "task" in params and params["name"] in SUPPORT:
            self.asked.append((ctx.method, params))
            return {"task": self._begin(ctx, params), "_meta": {"note": "begun"}}
        if ctx.method.startswith("tasks/"):
            self.asked.append((ctx.method, params))
            return await self._on_task(ctx, self._find(ctx, params["taskId"]))
        if ctx.method == "tools/call" and SUPPORT.get(params["name"]) == "required":
            raise MCPError(METHOD_NOT_FOUND, f"Tool {params['name']} requires task augmentation")
        result = await call_next(ctx)
        if isinstance(result, InitializeResult) and self.declares:
            capabilities = result.capabilities.model_copy(update={"tasks": CAPABILITY})
            return result.model_copy(update={"capabilities": capabilities})
        if ctx.method == "tools/list":
            result = {**result, "tools": [_supporting(tool) for tool in result["tools"]]}
        return result

    def _begin(self, ctx: Any, params: Mapping[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat()
        state = {
            "taskId": uuid4().hex.ljust(self.id_chars, "0"),
            "status": "working",
            "statusMessage": "Digging.",
            "createdAt": now,
            "lastUpdatedAt": now,
            "ttl": params["task"].get("ttl"),
            "pollInterval": 10,
        }
        self.tasks[state["taskId"]] = RunningTask(dict(state), params["name"], session_of(ctx))
        if self.at_once:
            self.end()
        return state

    def _find(self, ctx: Any, task_id: str) -> RunningTask:
        task = self.tasks.get(task_id)
        if task is None or task.session not in {None, session_of(ctx)}:
            raise MCPError(INVALID_PARAMS, f"Task {task_id} not found")
        return task

    async def _on_task(self, ctx: Any, task: RunningTask) -> dict[str, Any]:
        if ctx.method == "tasks/cancel":
            if task.ended.is_set():
                raise MCPError(INVALID_PARAMS, f"Task {task.state['taskId']} has ended")
            self._move(task, "cancelled")
        if ctx.method != "tasks/result":
            return dict(task.state)
        if task.tool == "ask":
            task.result = await _asked(ctx)
            self._move(task, "completed")
        await task.ended.wait()
        if task.error is not None:
            raise task.error
        return {**task.result, "_meta": {RELATED: {"taskId": task.state["taskId"]}}}

    def _move(self, task: RunningTask, status: str) -> None:
        task.state |= {"status": status, "lastUpdatedAt": datetime.now(UTC).isoformat()}
        task.ended.set()


def _supporting(tool: dict[str, Any]) -> dict[str, Any]:
    support = SUPPORT.get(tool["name"])
    return tool if support is None else {**tool, "execution": {"taskSupport": support}}


async def _asked(ctx: Any) -> dict[str, Any]:
    """What the client says to a question, or why it does not take one."""
    schema = {"type": "object", "properties": {}}
    try:
        answer = await ctx.session.elicit_form("How deep?", schema, related_request_id=ctx.request_id)
    except MCPError as refused:
        return {"content": [{"type": "text", "text": refused.error.message}], "isError": True}
    return {"content": [{"type": "text", "text": answer.action}]}
