"""Passes on what an upstream reports while it works: progress, and what it logs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from fastmcp import Context
from mcp_types import (
    LOG_LEVEL_META_KEY,
    EmptyResult,
    LoggingLevel,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    SetLevelRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cwm.services.agents.context_manager import ContextManager
from cwm.transport.mcp.requests.agent import Agency, meta_of
from cwm.transport.mcp.requests.agent import Context as Request
from cwm.transport.mcp.requests.errors import unusable

_LEVELS: Final[tuple[str, ...]] = get_args(LoggingLevel)
_UNASKED_LEVEL: Final = "error"
_STORED_AS: Final = "log_level"


@dataclass(slots=True)
class Relay:
    """Forwards in order, and before the answer. Clients of the handshake era say for their session what they want logged.

    ``recipient`` gets the progress. FastMCP takes it from the running ``_context``, which is not the caller's when a
    stdio upstream reports.
    """

    request: Request
    upstream: str
    agent: ContextManager
    recipient: Context | None = None
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)
    _last: asyncio.Task[None] | None = None

    @property
    def wants_logs(self) -> bool:
        """Whether the client may want messages: one of 2026-07-28 says so with each request."""
        return self.request.protocol_version not in MODERN_PROTOCOL_VERSIONS or self._requested is not None

    @property
    def _requested(self) -> Any:
        return meta_of(self.request).get(LOG_LEVEL_META_KEY)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        recipient = self.recipient
        if recipient is not None and math.isfinite(progress):
            await asyncio.wait(
                {self._after_the_last(lambda: recipient.report_progress(progress, total, message))}
            )

    def log(self, level: str, logger: str | None, data: Any) -> None:
        if unusable([data]) is None:
            self._after_the_last(lambda: self._log(level, logger, data))

    async def settled(self) -> None:
        if self._last is not None:
            await asyncio.wait({self._last})

    def _after_the_last(self, report: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        self._last = asyncio.create_task(_report(self._last, report), context=self._context)
        return self._last

    async def _log(self, level: Any, logger: str | None, data: Any) -> None:
        lowest = await self._lowest_level()
        if lowest not in _LEVELS or _LEVELS.index(level) < _LEVELS.index(lowest):
            return
        name = self.upstream if logger is None else f"{self.upstream}.{logger}"
        message = LoggingMessageNotificationParams(level=level, logger=name, data=data)
        await self.request.session.send_notification(
            LoggingMessageNotification(params=message), related_request_id=self.request.request_id
        )

    async def _lowest_level(self) -> Any:
        """None if the client wants no messages."""
        if self.request.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return self._requested
        return (await self.agent.store.recall(self.agent.key)).get(_STORED_AS, _UNASKED_LEVEL)


async def set_log_level(agency: Agency, context: Request, params: SetLevelRequestParams) -> EmptyResult:
    """Handle ``logging/setLevel``: any replica knows the level of an agent session."""
    agent = (await agency.caller(context)).agent
    previous = (await agent.store.recall(agent.key)).get(_STORED_AS)
    await agent.store.remember(
        agent.key, _STORED_AS, params.level, instead_of=previous, anew=agent.agent_session is None
    )
    return EmptyResult()


async def _report(previous: asyncio.Task[None] | None, report: Callable[[], Awaitable[None]]) -> None:
    if previous is not None:
        await asyncio.wait({previous})
    # A caller that has disconnected needs no report.
    with contextlib.suppress(Exception):
        await report()
