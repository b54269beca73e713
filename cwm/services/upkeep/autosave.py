"""Autosave: freezes the current turns of sessions that go on, and deletes older ones of these windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from cwm.domain.autosave import AutosavePolicies, AutosavePolicy, UnsavedQuery
from cwm.domain.errors import CwmError, ErrorKind
from cwm.domain.session import Session
from cwm.domain.upkeep import Step, StepOutcome
from cwm.domain.visibility import visibility_of
from cwm.domain.window import Durability, Retention
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.upkeep.retention import RetentionPolicy, lifetimes
from cwm.services.windows.delete import Delete
from cwm.services.windows.freeze import Freeze

_AT_ONCE: Final = 100
_HOUR: Final = timedelta(hours=1)
_AWAY: Final = frozenset({ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT})
_PREFIX: Final = "auto_"


@dataclass(slots=True)
class Autosave:
    """A window made here keeps a turn's tokens; its KV stays as long as the tiers keep it."""

    registry: Registry
    freeze: Freeze
    delete: Delete
    clock: Clock
    retention: RetentionPolicy
    policies: AutosavePolicies
    _aside: dict[tuple[str, str], datetime] = field(default_factory=dict)

    async def __call__(self, *, dry_run: bool) -> list[Step]:
        """Save at most a hundred sessions for each reason and policy; the next run saves the rest.

        The first session that cannot be saved since a component is down ends the run.
        """
        now = self.clock.now()
        self._aside = {key: until for key, until in self._aside.items() if until > now}
        steps: list[Step] = []
        for policy, query in self._queries(now):
            for session in await self.registry.unsaved_sessions_of_every_tenant(query):
                if (session.tenant, session.id) in self._aside:
                    continue
                steps += await self._save(session, policy, dry_run=dry_run)
                if steps and steps[-1].outcome is StepOutcome.POSTPONED:
                    return steps
        return steps

    def _queries(self, now: datetime) -> Iterator[tuple[AutosavePolicy, UnsavedQuery]]:
        own = self.policies.by_tenant.keys() | self.retention.keep.by_tenant.keys()
        for tenant in (None, *sorted(own)):
            policy = self.policies.of(tenant)
            if policy is None:
                continue
            limit = _AT_ONCE + len(self._aside)
            query = UnsavedQuery(limit, tenant=tenant, but=frozenset(own - {tenant}))
            every = policy.every or timedelta()
            yield (
                policy,
                replace(
                    query,
                    tokens=policy.every_tokens,
                    saved_before=now - every if every else None,
                    # Sessions that are not in use were saved when they were, or are before they expire.
                    used_since=now - max(2 * every, _HOUR),
                ),
            )
            for seconds, by_content in lifetimes(self.retention.ttl_of, tenant):
                ttl = timedelta(seconds=seconds)
                before = now - ttl + min(ttl / 2, _HOUR)
                yield policy, replace(query, tokens=0, used_before=before, by_content=by_content)

    async def _save(self, session: Session, policy: AutosavePolicy, *, dry_run: bool) -> list[Step]:
        step = Step("save_session", session.tenant, session.id, StepOutcome.DONE, of_session=True)
        try:
            turn = await self.freeze.current.unmoved(session)
            if turn is None:
                return []
            name = f"{_PREFIX}{session.id}_{turn.number}"
            step = replace(step, detail=f"as window {name}")
            if dry_run:
                return [replace(step, outcome=StepOutcome.PLANNED)]
            await self.freeze(
                session.keeper,
                session.id,
                name,
                "Saved while its session went on.",
                wait=False,
                canary=False,
                retention=Retention.BEST_EFFORT,
                ttl_seconds=self._ttl_seconds(session),
                turn_id=turn.id,
                automatic=True,
                visibility=visibility_of(session.circle),
            )
            return [step, *await self._delete_older(session, policy.keep)]
        except CwmError as error:
            if error.kind in _AWAY:
                return [replace(step, outcome=StepOutcome.POSTPONED, detail=error.message)]
            self._aside[session.tenant, session.id] = self.clock.now() + _HOUR
            return [replace(step, outcome=StepOutcome.FAILED, detail=error.message)]

    def _ttl_seconds(self, session: Session) -> int | None:
        """A session that nobody uses again is deleted by then."""
        tenant, by_content = session.tenant, session.by_content
        ttl = self.retention.ttl_of(tenant, by_content=by_content)
        grace = self.retention.kept_of(tenant, by_content=by_content)
        return round(ttl + grace) if ttl and grace else None

    async def _delete_older(self, session: Session, keep: int) -> list[Step]:
        """Their blocks stay: other turns of the session may need them, and the tiers evict what nobody uses."""
        steps = []
        for window in (await self.registry.automatic_windows(session.tenant, session.id))[keep:]:
            if window.durability is not Durability.PENDING and not await self.registry.dependents(
                window.tenant, window.name
            ):
                await self.delete.now(window, delete_blocks=False)
                detail = f"its session has {keep} newer ones"
                steps.append(Step("delete_window", window.tenant, window.name, StepOutcome.DONE, detail))
        return steps
