"""Shared answers: the cached answers of read-only upstream tools."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from cwm.background import BackgroundTasks
from cwm.domain.canonical import canonical_json
from cwm.domain.errors import CwmError, StorageCorruptionError
from cwm.domain.json_text import compact_json, is_long
from cwm.domain.principal import Principal
from cwm.domain.shared_context import ANSWERS, ContextScope
from cwm.domain.tool_policy import CachePolicy, SharingScope, ToolPolicies
from cwm.domain.upstream import Offer, answers_alike, exposed_name, only_reads
from cwm.ports.upstream import UpstreamError
from cwm.services.context.requests import Setting
from cwm.services.context.shared_context import SharedContext
from cwm.services.upstreams.upstreams import CallerOf, Upstreams
from cwm.threads import aside, in_thread

UpstreamAnswer: TypeAlias = dict[str, Any]
Ask: TypeAlias = Callable[[], Awaitable[UpstreamAnswer]]

_EPOCH: Final = "epoch"
# The format of stored answers, part of the key: gateways with another format do not find these.
_FORM: Final = "text"
# An upstream belongs to no tenant: all tenants see what one changes there.
_NOBODYS: Final = ""
_CWM: Final = Principal(_NOBODYS, "cwm")


@dataclass(frozen=True, slots=True)
class Given:
    """An upstream's answer. ``age_seconds`` is None if this call requested it."""

    answer: UpstreamAnswer
    age_seconds: float | None = None


@dataclass(slots=True)
class _RunningCall:
    """A running call, and how many callers wait for it."""

    task: asyncio.Task[UpstreamAnswer]
    waiting: int = 0


class SharedAnswers:
    """Keeps answers in shared context for as long as the tool's policy says, and only until the next write to that upstream.

    Every upstream has an epoch. It ends before and after each call that may write, and when another upstream takes
    the name; answers of an earlier epoch are not found. While no policy shares an upstream's answers, only the first
    write ends the epoch; the later ones end it when a policy shares them again. If a gateway dies in between, or cannot
    reach the store, answers may be as old as their policy allows, not older. After any failure here the upstream is
    asked.
    """

    def __init__(self, context: SharedContext, upstreams: Upstreams, policies: ToolPolicies) -> None:
        self.policies = policies
        self._context = context
        self._upstreams = upstreams
        self._asking: dict[tuple[ContextScope, str], _RunningCall] = {}
        self._overdue: set[str] = set()
        self._ending = BackgroundTasks()
        upstreams.roster.at_other(partial(self._end_epoch, _CWM))

    async def configure(self, policies: ToolPolicies) -> None:
        """Use these policies from now on. Ends the epoch of upstreams that were written to while nothing was shared."""
        self.policies = policies
        for upstream in [each for each in self._overdue if self._may_be_shared(each)]:
            await self._end_epoch(_CWM, upstream)

    async def call(
        self,
        caller: CallerOf,
        offer: Offer,
        policy: CachePolicy | None,
        arguments: Mapping[str, Any],
        ask: Ask,
        *,
        alone: bool = False,
    ) -> Given:
        """The stored answer, or else the result of ``ask``; raises what ``ask`` raises. ``policy`` is the tool's.

        ``alone``: do not share, because the call continues an exchange with this caller.
        """
        if not only_reads(offer.definition):
            return await self._ask_writing(caller, offer.upstream, ask)
        if policy is None or alone or not answers_alike(offer.definition):
            return Given(await ask())
        scope = ContextScope(caller.agent.principal.tenant, ANSWERS, f"{ANSWERS}:{offer.upstream}")
        try:
            if offer.upstream in self._overdue:
                await self._next_epoch(caller.agent.principal, offer.upstream)
            key = f"{await self._epoch(offer.upstream)}/{self._key(caller, offer, arguments, policy)}"
            stored_answer = await self._stored_answer(scope, key)
        except CwmError:
            self._count("unreachable")
            return Given(await ask())
        if stored_answer is not None:
            self._count("shared")
            return stored_answer
        return await self._join(caller, scope, key, policy, ask)

    async def _join(
        self, caller: CallerOf, scope: ContextScope, key: str, policy: CachePolicy, ask: Ask
    ) -> Given:
        """Ask, or wait for a running call with the same key. A caller that is cancelled does not cancel it for others."""
        running_call = self._asking.get((scope, key))
        first = running_call is None
        if running_call is None:
            task = asyncio.create_task(self._ask(caller, scope, key, policy, ask))
            running_call = self._asking[scope, key] = _RunningCall(task)
            task.add_done_callback(lambda _: self._not_to_join((scope, key), task))
        running_call.waiting += 1
        try:
            async with caller.agent.serving():
                answer = await asyncio.shield(running_call.task)
        except (CwmError, UpstreamError):
            if first:
                raise
            # The reason may concern only the caller who asked first.
            return Given(await ask())
        finally:
            running_call.waiting -= 1
            if not running_call.waiting:
                self._not_to_join((scope, key), running_call.task)
                running_call.task.cancel()
        if first:
            return Given(answer)
        if not _is_complete(answer):
            # An incomplete answer asks questions of its own caller.
            return Given(await ask())
        self._count("joined")
        return Given(answer, 0.0)

    def _not_to_join(self, call_key: tuple[ContextScope, str], task: asyncio.Task[UpstreamAnswer]) -> None:
        if (running_call := self._asking.get(call_key)) is not None and running_call.task is task:
            del self._asking[call_key]

    async def _ask(
        self, caller: CallerOf, scope: ContextScope, key: str, policy: CachePolicy, ask: Ask
    ) -> UpstreamAnswer:
        answer = await ask()
        self._count("asked")
        if not answer.get("isError") and _is_complete(answer):
            try:
                # As text: shared context would reorder the names of an object.
                long = is_long(answer)
                text = await in_thread(compact_json, answer) if long else compact_json(answer)
                setting = Setting(key, text, ttl_seconds=policy.ttl_seconds)
                await self._context.set(caller.agent.principal, scope, setting)
            except (CwmError, RecursionError):
                self._count("not_kept")
        return answer

    async def _ask_writing(self, caller: CallerOf, upstream: str, ask: Ask) -> Given:
        principal = caller.agent.principal
        await self._note_write(principal, upstream)
        try:
            return Given(await ask())
        finally:
            # A call that failed or was cancelled may have written, too.
            await asyncio.shield(self._ending.start(self._note_write(principal, upstream)))

    async def _note_write(self, principal: Principal, upstream: str) -> None:
        """End the epoch. While nothing is shared only the first write does; later ones are deferred until answers are shared."""
        shared = self._may_be_shared(upstream)
        if shared or upstream not in self._overdue:
            await self._end_epoch(principal, upstream)
        if not shared:
            self._overdue.add(upstream)

    async def _end_epoch(self, principal: Principal, upstream: str) -> None:
        try:
            await self._next_epoch(principal, upstream)
        except CwmError:
            self._overdue.add(upstream)
            self._count("not_ended")

    async def _next_epoch(self, principal: Principal, upstream: str) -> None:
        await self._context.set(principal, _epochs(upstream), Setting(_EPOCH, True))
        self._overdue.discard(upstream)

    async def _epoch(self, upstream: str) -> int:
        entry = (await self._context.get(_epochs(upstream), _EPOCH)).entry
        return 0 if entry is None else entry.version

    async def _stored_answer(self, scope: ContextScope, key: str) -> Given | None:
        try:
            result = await self._context.get(scope, key)
        except StorageCorruptionError:
            return None
        if result.entry is None:
            return None
        age = self._context.clock.now() - result.entry.written_at
        text = str(result.value)
        answer = await aside(len(text), lambda: json.loads(text))
        return Given(answer, max(0.0, age.total_seconds()))

    def _key(self, caller: CallerOf, offer: Offer, arguments: Mapping[str, Any], policy: CachePolicy) -> str:
        """A digest of who may share the answer and what was requested."""
        agent, who = caller.agent, ""
        if policy.scope is SharingScope.SESSION:
            who = f"session:{agent.key}"
        elif self._upstreams.knows_callers(offer.upstream):
            who = f"subject:{agent.principal.subject}"
        names = policy.key or sorted(arguments)
        request = {name: arguments[name] for name in names if name in arguments}
        return hashlib.sha256(canonical_json([_FORM, who, offer.own_name, request])).hexdigest()

    def _may_be_shared(self, upstream: str) -> bool:
        """Whether a policy may share answers of one of its tools."""
        policies = self.policies
        return policies.default.cache is not None or any(
            policy.cache is not None and _may_name(pattern, upstream)
            for pattern, policy in policies.by_name.items()
        )

    def _count(self, what: str) -> None:
        self._context.meter.event(f"upstream_answer_{what}")


def _is_complete(answer: UpstreamAnswer) -> bool:
    return bool(answer.get("resultType", "complete") == "complete")


def _epochs(upstream: str) -> ContextScope:
    return ContextScope(_NOBODYS, ANSWERS, f"{_EPOCH}:{upstream}")


def _may_name(pattern: str, upstream: str) -> bool:
    """Whether a tool's name or pattern can match one of this upstream's tools, judged up to the first wildcard."""
    literal, prefix = re.split(r"[*?\[]", pattern, maxsplit=1)[0], exposed_name(upstream, "")
    return literal.startswith(prefix) or (literal != pattern and prefix.startswith(literal))
