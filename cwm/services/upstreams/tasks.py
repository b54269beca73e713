"""Tasks of upstreams: calls of tools that go on after they are answered, under handles of CWM's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from cwm.domain.audit import Severity
from cwm.domain.errors import ConcurrencyLimitError, CwmError, UpstreamTaskNotFoundError
from cwm.domain.principal import Principal
from cwm.domain.upstream_tasks import UpstreamTask, new_handle, state_in
from cwm.ports.clock import Clock
from cwm.ports.upstream import UpstreamRefusedError
from cwm.ports.upstream_tasks import UpstreamTaskRecords
from cwm.services.audit.journal import Journal
from cwm.services.upstreams.upstreams import CallerOf, Upstreams

GET: Final = "tasks/get"
CANCEL: Final = "tasks/cancel"
RESULT: Final = "tasks/result"

_PAGE: Final = 20
_SWEEP_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 30
# JSON-RPC's "invalid params": the upstream does not know the task any more.
_UNKNOWN: Final = -32602
# The upstream's handshake is part of it, and may be of any length.
_LONGEST_SESSION: Final = 16 * 1024

_log = logging.getLogger("cwm.upstream")

Begin = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Calls a tool with this ``task``, and returns the upstream's answer."""


@dataclass(frozen=True, slots=True)
class UpstreamTasks:
    """Every gateway finds a task by its handle, for its owner alone. ``most``: open tasks of one user; ``ttl``: how long a task is known."""

    records: UpstreamTaskRecords
    upstreams: Upstreams
    journal: Journal
    clock: Clock
    most: int
    ttl: timedelta

    async def begin(
        self, caller: CallerOf, upstream: str, tool: str, ttl_ms: int | None, begin: Begin
    ) -> tuple[UpstreamTask | None, dict[str, Any]]:
        """The task that the call begins, and the upstream's answer; no task if the upstream answers with the result.

        CWM-7002 if the caller has too many open tasks. Raises what ``begin`` raises.
        """
        principal, now = caller.agent.principal, self.clock.now()
        task = UpstreamTask(
            *(principal.tenant, new_handle(), principal.subject, upstream, tool),
            *(now, now + self.ttl, now + self.ttl),
        )
        if not await self.records.keep(task, self.most):
            raise _too_many(self.most)
        try:
            answer = await begin({} if ttl_ms is None else {"ttl": task.ttl_ms({"ttl": ttl_ms})})
            if (state := state_in(answer)) is None:
                await self.records.forget(task)
                return None, answer
            session = self.upstreams.outlasting_session(caller, upstream)
            task = task.begun(state, session if session and len(session) <= _LONGEST_SESSION else None)
            await self.records.change(task)
            await self._audit(principal, "upstream_task_create", task)
        except BaseException:
            with suppress(CwmError):
                await asyncio.shield(self.records.forget(task))
            raise
        return task, answer

    async def find(self, principal: Principal, handle: str) -> UpstreamTask:
        """The principal's task with this handle. CWM-2010."""
        task = await self.records.find(principal.tenant, handle)
        if task is not None and task.owner != principal.subject:
            await self.journal.foreign(principal, "upstream_task", task=handle)
            raise _not_found()
        if task is None or task.task_id is None or task.expires_at <= self.clock.now():
            error = _not_found()
            await self.journal.not_found(principal, "tasks", error, {"task": handle})
            raise error
        return task

    async def state(self, caller: CallerOf, task: UpstreamTask) -> Mapping[str, Any]:
        """What the upstream says of the task. Raises UpstreamRefusedError, and CWM-5003, 5004 and 6001."""
        try:
            return await self._ask(caller, task, GET, repeatable=True)
        except UpstreamRefusedError as error:
            if error.code == _UNKNOWN:
                await self.records.change(replace(task, open_until=min(self.clock.now(), task.open_until)))
            raise

    async def cancel(self, caller: CallerOf, task: UpstreamTask) -> Mapping[str, Any]:
        """Cancel the task, and return what the upstream says of it. Raises what :meth:`state` raises."""
        state = await self._ask(caller, task, CANCEL, repeatable=False)
        await self._audit(caller.agent.principal, "upstream_task_cancel", task)
        return state

    async def read(self, task: UpstreamTask, result: Mapping[str, Any]) -> None:
        """Note that the task has ended with this result."""
        await self._note(task, {"status": "failed" if result.get("isError") is True else "completed"})

    async def page(
        self, caller: CallerOf, cursor: str | None
    ) -> tuple[Sequence[tuple[UpstreamTask, Mapping[str, Any]]], str | None]:
        """The caller's tasks with their states, the newest first, and the cursor of the next page. CWM-2010 for another cursor."""
        principal, now = caller.agent.principal, self.clock.now()
        after = None if cursor is None else await self.records.find(principal.tenant, cursor)
        if cursor is not None and (after is None or after.owner != principal.subject):
            raise _not_found()
        tasks = await self.records.of_owner(principal.tenant, principal.subject, after, _PAGE + 1)
        page = tasks[:_PAGE]
        living_tasks = [task for task in page if task.task_id is not None and task.expires_at > now]
        states = await asyncio.gather(*(self._last_state(caller, task) for task in living_tasks))
        pairs = zip(living_tasks, states, strict=True)
        tasks_with_state = [(task, state) for task, state in pairs if state is not None]
        return tasks_with_state, page[-1].handle if len(tasks) > _PAGE else None

    async def sweep(self) -> None:
        """Remove expired tasks every minute. Runs until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.records.forget_expired_of_every_tenant(self.clock.now())
            except CwmError as error:
                _log.warning("expired tasks of upstreams could not be removed: %s", error.message)

    async def _last_state(self, caller: CallerOf, task: UpstreamTask) -> Mapping[str, Any] | None:
        """The task's state; as CWM knows it if the upstream cannot be asked, and None if the upstream does not know it."""
        try:
            return await self.state(caller, task)
        except UpstreamRefusedError:
            return None
        except CwmError as error:
            created_at = task.created_at.isoformat()
            return {
                "status": task.status,
                "statusMessage": error.published,
                "createdAt": created_at,
                "lastUpdatedAt": created_at,
                "ttl": None,
            }

    async def _ask(
        self, caller: CallerOf, task: UpstreamTask, method: str, *, repeatable: bool
    ) -> Mapping[str, Any]:
        params = {"taskId": task.task_id}
        state = await self.upstreams.request(
            caller, task.upstream, method, params, repeatable=repeatable, resume=task.session
        )
        await self._note(task, state)
        return state

    async def _note(self, task: UpstreamTask, state: Mapping[str, Any]) -> None:
        if (changed := task.seen(state, self.clock.now())).status != task.status:
            await self.records.change(changed)

    async def _audit(self, principal: Principal, event: str, task: UpstreamTask) -> None:
        details = {"tool": task.tool, "task": task.handle}
        await self.journal.note(principal, event, "success", details, Severity.INFO)


def _not_found() -> UpstreamTaskNotFoundError:
    return UpstreamTaskNotFoundError("There is no such task; it may have expired.")


def _too_many(most: int) -> ConcurrencyLimitError:
    return ConcurrencyLimitError(
        f"Concurrency limit exceeded: {most} open tasks of upstreams for each user. Cancel some, or wait until they end.",
        retry_after=_AGAIN_SECONDS,
        limit=most,
        setting="CWM_UPSTREAM_TASKS",
    )
