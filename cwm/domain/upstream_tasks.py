"""Tasks of upstreams (MCP 2025-11-25), and the handles by which clients know them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

WORKING: Final = "working"
ENDED: Final = frozenset({"completed", "failed", "cancelled"})
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
"""Key of ``_meta`` that names the task of a message."""

_HANDLE_BYTES: Final = 24
_LONGEST_ID, _LONGEST_STATUS = 1024, 64


@dataclass(frozen=True, slots=True)
class UpstreamTask:
    """``task_id`` is the upstream's own; None until the upstream has begun the task.

    ``owner`` is the subject that called ``tool``. ``open_until``: how long the task counts as open, at most.
    ``session``: with what the upstream session of the task can be resumed; None if callers share one.
    """

    tenant: str
    handle: str
    owner: str
    upstream: str
    tool: str
    created_at: datetime
    open_until: datetime
    expires_at: datetime
    status: str = WORKING
    task_id: str | None = None
    session: str | None = None

    def begun(self, state: Mapping[str, Any], session: str | None) -> UpstreamTask:
        """The task as the upstream has begun it."""
        until = min(self.expires_at, self.created_at + timedelta(milliseconds=self.ttl_ms(state)))
        task = replace(self, task_id=state["taskId"], open_until=until, session=session)
        return task.seen(state, self.created_at)

    def seen(self, state: Mapping[str, Any], at: datetime) -> UpstreamTask:
        """The task in a state that the upstream reports."""
        status = str(state.get("status"))[:_LONGEST_STATUS]
        return replace(
            self, status=status, open_until=min(at, self.open_until) if status in ENDED else self.open_until
        )

    def ttl_ms(self, state: Mapping[str, Any]) -> int:
        """For how long the result can be had, from the task's creation: by the upstream, and by CWM."""
        most, ttl = self.expires_at - self.created_at, state.get("ttl")
        most_ms = round(most.total_seconds() * 1000)
        return min(most_ms, ttl) if isinstance(ttl, int) and ttl >= 0 else most_ms

    def shown(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state that the upstream reports, under the handle."""
        return {**state, "taskId": self.handle, "ttl": self.ttl_ms(state)}

    def renamed(self, text: str) -> str:
        """A text of the upstream, with the handle for the upstream's own id."""
        return text if self.task_id is None else text.replace(self.task_id, self.handle)


def new_handle() -> str:
    return f"task_{secrets.token_urlsafe(_HANDLE_BYTES)}"


def state_in(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The state of the task that an answer to a tool call begins; None if it begins none, or one with an id that is too long."""
    state = answer.get("task")
    task_id = state.get("taskId") if isinstance(state, Mapping) else None
    return state if isinstance(task_id, str) and len(task_id) <= _LONGEST_ID else None


def related_to(task: UpstreamTask, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer with the handle in the place where MCP names the task of a result."""
    return {**answer, "_meta": {**(answer.get("_meta") or {}), RELATED_TASK: {"taskId": task.handle}}}
