"""Answers of upstream tools that only read, given again to whoever asks the same."""

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
from cwm.domain.json_text import is_long, json_text
from cwm.domain.principal import Principal
from cwm.domain.shared_context import ANSWERS, Scope
from cwm.domain.tool_policy import CachePolicy, SharingScope, ToolPolicies
from cwm.domain.upstream import Offer, answers_alike, exposed_name, only_reads
from cwm.ports.upstream import UpstreamError
from cwm.services.aside import aside
from cwm.services.context.requests import Setting
from cwm.services.context.shared_context import SharedContext
from cwm.services.upstreams.upstreams import CallerOf, Upstreams

Answer: TypeAlias = dict[str, Any]
Ask: TypeAlias = Callable[[], Awaitable[Answer]]

_EPOCH: Final = "epoch"
# Of what is kept: gateways that keep another look for it under another key.
_FORM: Final = "text"
# An upstream belongs to no tenant: what one changes there, all see.
_NOBODYS: Final = ""
_CWM: Final = Principal(_NOBODYS, "cwm")


@dataclass(frozen=True, slots=True)
class Given:
    """An upstream's answer. ``age_seconds`` is None for one that was asked for by this very call."""

    answer: Answer
    age_seconds: float | None = None


@dataclass(slots=True)
class _Asking:
    """A call that is under way, and how many wait for it."""

    task: asyncio.Task[Answer]
    waiting: int = 0


class SharedAnswers:
    """Keeps answers in shared context for as long as the tool's policy says, and no longer than nothing was written.

    Every upstream has an epoch, which ends before and after each call that may write to it, and when another
    takes its name; answers of another epoch are not found. Where no policy shares an upstream's answers, the
    first write ends its epoch, and the others do when a policy shares them again. A gateway that dies in between,
    or cannot reach the store, leaves answers that may be as old as their policy allows, and not older. Whatever
    fails here, the upstream is asked.
    """

    def __init__(self, context: SharedContext, upstreams: Upstreams, policies: ToolPolicies) -> None:
        self.policies = policies
        self._context = context
        self._upstreams = upstreams
        self._asking: dict[tuple[Scope, str], _Asking] = {}
        self._overdue: set[str] = set()
        self._ending = BackgroundTasks()
        upstreams.at_other(partial(self._end_epoch, _CWM))

    async def configure(self, policies: ToolPolicies) -> None:
        """Calls from now on go by these. What was written while an upstream's answers were not shared ends its epoch."""
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
        """``ask``, or what it gave before; raises what it raises. ``policy`` is the tool's.

        ``alone``: what is asked goes on with what only this caller was asked and said.
        """
        if not only_reads(offer.definition):
            return await self._writing(caller, offer.upstream, ask)
        if policy is None or alone or not answers_alike(offer.definition):
            return Given(await ask())
        scope = Scope(caller.agent.principal.tenant, ANSWERS, f"{ANSWERS}:{offer.upstream}")
        try:
            if offer.upstream in self._overdue:
                await self._next_epoch(caller.agent.principal, offer.upstream)
            key = f"{await self._epoch(offer.upstream)}/{self._key(caller, offer, arguments, policy)}"
            kept = await self._kept(scope, key)
        except CwmError:
            self._count("unreachable")
            return Given(await ask())
        if kept is not None:
            self._count("shared")
            return kept
        return await self._joined(caller, scope, key, policy, ask)

    async def _joined(self, caller: CallerOf, scope: Scope, key: str, policy: CachePolicy, ask: Ask) -> Given:
        """Ask, or wait for whoever asks just now; one who leaves takes nothing from the others."""
        asking = self._asking.get((scope, key))
        first = asking is None
        if asking is None:
            task = asyncio.create_task(self._asked(caller, scope, key, policy, ask))
            asking = self._asking[scope, key] = _Asking(task)
            task.add_done_callback(lambda _: self._not_to_join((scope, key), task))
        asking.waiting += 1
        try:
            async with caller.agent.serving():
                answer = await asyncio.shield(asking.task)
        except (CwmError, UpstreamError):
            if first:
                raise
            # It may have failed for a reason of the other's own.
            return Given(await ask())
        finally:
            asking.waiting -= 1
            if not asking.waiting:
                self._not_to_join((scope, key), asking.task)
                asking.task.cancel()
        if first:
            return Given(answer)
        if not _is_complete(answer):
            # Questions are for the one who asked.
            return Given(await ask())
        self._count("joined")
        return Given(answer, 0.0)

    def _not_to_join(self, asked: tuple[Scope, str], task: asyncio.Task[Answer]) -> None:
        if (asking := self._asking.get(asked)) is not None and asking.task is task:
            del self._asking[asked]

    async def _asked(self, caller: CallerOf, scope: Scope, key: str, policy: CachePolicy, ask: Ask) -> Answer:
        answer = await ask()
        self._count("asked")
        if not answer.get("isError") and _is_complete(answer):
            try:
                spelled = (
                    _spelled(answer) if not is_long(answer) else await asyncio.to_thread(_spelled, answer)
                )
                kept = Setting(key, spelled, ttl_seconds=policy.ttl_seconds)
                await self._context.set(caller.agent.principal, scope, kept)
            except (CwmError, RecursionError):
                self._count("not_kept")
        return answer

    async def _writing(self, caller: CallerOf, upstream: str, ask: Ask) -> Given:
        principal = caller.agent.principal
        await self._written(principal, upstream)
        try:
            return Given(await ask())
        finally:
            # Also of a call that failed or was given up: it may have been done.
            await asyncio.shield(self._ending.start(self._written(principal, upstream)))

    async def _written(self, principal: Principal, upstream: str) -> None:
        """Where nothing is shared, the first write ends what may be kept; later ones do when something is again."""
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

    async def _kept(self, scope: Scope, key: str) -> Given | None:
        try:
            found = await self._context.get(scope, key)
        except StorageCorruptionError:
            return None
        if found.entry is None:
            return None
        age = self._context.clock.now() - found.entry.written_at
        spelled = str(found.value)
        answer = await aside(len(spelled), lambda: json.loads(spelled))
        return Given(answer, max(0.0, age.total_seconds()))

    def _key(self, caller: CallerOf, offer: Offer, arguments: Mapping[str, Any], policy: CachePolicy) -> str:
        """Who may be answered alike, and what was asked; a digest of both."""
        agent, who = caller.agent, ""
        if policy.scope is SharingScope.SESSION:
            who = f"session:{agent.key}"
        elif self._upstreams.knows_callers(offer.upstream):
            who = f"subject:{agent.principal.subject}"
        names = policy.key or sorted(arguments)
        asked = {name: arguments[name] for name in names if name in arguments}
        return hashlib.sha256(canonical_json([_FORM, who, offer.own_name, asked])).hexdigest()

    def _may_be_shared(self, upstream: str) -> bool:
        """Whether some tool of it may have a policy that shares its answers."""
        policies = self.policies
        return policies.default.cache is not None or any(
            policy.cache is not None and _may_name(pattern, upstream)
            for pattern, policy in policies.by_name.items()
        )

    def _count(self, what: str) -> None:
        self._context.meter.event(f"upstream_answer_{what}")


def _spelled(answer: Answer) -> str:
    """A text: shared context would keep an object with its names in another order."""
    return json_text(answer, (",", ":"))


def _is_complete(answer: Answer) -> bool:
    return bool(answer.get("resultType", "complete") == "complete")


def _epochs(upstream: str) -> Scope:
    return Scope(_NOBODYS, ANSWERS, f"{_EPOCH}:{upstream}")


def _may_name(pattern: str, upstream: str) -> bool:
    """Whether a tool's name or pattern can be one of this upstream's tools, as far as its first wildcard tells."""
    literal, prefix = re.split(r"[*?\[]", pattern, maxsplit=1)[0], exposed_name(upstream, "")
    return literal.startswith(prefix) or (literal != pattern and prefix.startswith(literal))
