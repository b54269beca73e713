"""The record of a tool call: the outermost layer makes it once, and every other layer reads it.

A request for the result of a task has one as well: the layers see it as a call of the tool that began the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from fastmcp.tools import Tool
from mcp.server.context import CallNext, HandlerResult

from cwm.domain.errors import CwmError, InternalError
from cwm.domain.principal import Principal
from cwm.domain.tool_policy import ToolPolicies, ToolPolicy
from cwm.domain.upstream import Offer, OfferKind
from cwm.domain.upstream_tasks import UpstreamTask
from cwm.services.upstreams.upstreams import CallerOf, Upstreams
from cwm.transport.mcp.requests.agent import Agency, Context, counted_session

TASKS_VERSION: Final = "2025-11-25"
"""The version of MCP that has tasks; the one after it has none."""

_TOOL_CALL: Final = "tools/call"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Who calls which tool, as of the arrival of the call.

    ``session`` is the agent session of the connection. ``own`` is CWM's tool of this name, ``upstream`` the
    configured upstream whose prefix the name has; a name may have both. ``result_of`` is the task whose result is wanted,
    instead of a call. ``begun`` gets the answer to a call that began a task.
    """

    request: Context
    principal: Principal
    session: str | None
    name: str
    own: Tool | None
    upstream: str | None
    policy: ToolPolicy
    _agency: Agency
    _upstreams: Upstreams
    result_of: UpstreamTask | None = None
    begun: dict[str, Any] = field(default_factory=dict)
    _callers: dict[str | None, CallerOf] = field(default_factory=dict)
    _offers: list[Offer | None] = field(default_factory=list)

    @property
    def counted_session(self) -> str | None:
        return counted_session(self.request, self.session)

    @property
    def task(self) -> Mapping[str, Any] | None:
        """How the client wants the call to be a task; None for an ordinary call, and in versions without tasks."""
        task = (self.request.params or {}).get("task")
        has_tasks = self.request.protocol_version == TASKS_VERSION and self.result_of is None
        return task if has_tasks and isinstance(task, Mapping) else None

    async def caller(self, handle: str | None = None) -> CallerOf:
        """The calling agent session, looked up once. CWM-2004, 1003 and 3006 as :meth:`Agency.caller`."""
        caller = self._callers.get(handle)
        if caller is None:
            caller = await self._agency.caller_of(self.request, self.principal, self.session, handle)
            self._callers[handle] = caller
        return caller

    async def offer(self) -> Offer | None:
        """The upstream's offer of this name to the caller, looked up once. CWM-5003 if the upstream cannot be asked."""
        if not self._offers:
            self._offers.append(await self._upstreams.offer(await self.caller(), OfferKind.TOOLS, self.name))
        return self._offers[0]


_current: Final[ContextVar[ToolCall | CwmError | None]] = ContextVar("tool_call", default=None)


def current_call() -> ToolCall | None:
    """The record of the running call; None for a request of another method."""
    call = _current.get()
    return call if isinstance(call, ToolCall) else None


def tool_call() -> ToolCall:
    """The record of the running call. Raises the error that prevented the record; CWM-9001 without a request."""
    call = _current.get()
    if isinstance(call, CwmError):
        raise call
    if call is None:
        raise InternalError("A call without a request.")
    return call


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The outermost middleware of the low-level server: makes the record of each tool call.

    The inner layers refuse a call without a principal; the SDK refuses one whose name is not a string.
    """

    agency: Agency
    upstreams: Upstreams
    tools: Mapping[str, Tool]
    policies: Callable[[], ToolPolicies]

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        name = (ctx.params or {}).get("name")
        record = await self._record(ctx, name) if ctx.method == _TOOL_CALL and isinstance(name, str) else None
        with _running(record):
            result = await call_next(ctx)
            return record.begun if isinstance(record, ToolCall) and record.begun else result

    @contextmanager
    def reading(
        self, ctx: Context, principal: Principal, session: str | None, task: UpstreamTask
    ) -> Iterator[None]:
        """Run the body as a call of the task's tool that returns the task's result."""
        with _running(self._call(ctx, principal, session, task.tool, task)):
            yield

    async def _record(self, ctx: Context, name: str) -> ToolCall | CwmError:
        try:
            principal, session = await self.agency.asking(ctx)
        except CwmError as refused:
            return refused
        return self._call(ctx, principal, session, name)

    def _call(
        self,
        ctx: Context,
        principal: Principal,
        session: str | None,
        name: str,
        result_of: UpstreamTask | None = None,
    ) -> ToolCall:
        return ToolCall(
            request=ctx,
            principal=principal,
            session=session,
            name=name,
            own=self.tools.get(name),
            upstream=self.upstreams.named_by(name),
            policy=self.policies().of(name),
            _agency=self.agency,
            _upstreams=self.upstreams,
            result_of=result_of,
        )


@contextmanager
def _running(call: ToolCall | CwmError | None) -> Iterator[None]:
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)
