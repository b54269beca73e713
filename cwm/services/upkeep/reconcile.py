"""Reconcile: finishes or undoes interrupted operations, and makes the cache match the registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cwm.domain.audit import AuditEvent, Severity, acting
from cwm.domain.errors import CwmError, ErrorKind
from cwm.domain.intent import Intent, Operation
from cwm.domain.upkeep import Step, StepOutcome
from cwm.domain.window import Durability
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.audit.journal import Journal
from cwm.services.kv.release import Release
from cwm.services.replicas import BEAT_SECONDS, Replicas
from cwm.services.upkeep.autosave import Autosave
from cwm.services.upkeep.patrol import Patrol
from cwm.services.upkeep.pin_audit import PinAudit
from cwm.services.upkeep.prove import Prove
from cwm.services.upkeep.renewal import ACTION as RENEWED
from cwm.services.upkeep.renewal import Renewal
from cwm.services.upkeep.retention import Retain
from cwm.services.windows.freeze import Freeze
from cwm.services.windows.quarantine import Quarantine

_SUBJECT: Final = "cwm"
_THOROUGH_EVERY: Final = 10
_RETRY_SECONDS: Final = 5.0
_PATROL_EVERY: Final = timedelta(hours=1)
_EVER: Final = datetime.max.replace(tzinfo=UTC)
_ALL: Final = 1_000_000
_TURNS: Final = 1_000


@dataclass(slots=True)
class Reconcile:
    """Runs all reconciliation steps. ``patrol_windows``: the most windows one background run reads back, and freezes again for each upgraded model; of these at least one."""

    registry: Registry
    kv_tier: KvTier
    replicas: Replicas
    freeze: Freeze
    quarantine: Quarantine
    release: Release
    pin_audit: PinAudit
    renewal: Renewal
    patrol: Patrol
    prove: Prove
    autosave: Autosave
    retain: Retain
    journal: Journal
    patrol_windows: int
    _runs_since_thorough: int = _THOROUGH_EVERY
    _lost_at: datetime | None = None
    _tried_loss: datetime | None = None
    _handled_loss: datetime | None = None
    _suspect_salts: set[str] = field(default_factory=set)
    _due: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, *, dry_run: bool = False) -> list[Step] | None:
        """One full run: handle every intent, compare every pin, read back every guaranteed window.

        With ``dry_run`` nothing is changed, and the steps are those that would be done. None if another gateway is
        reconciling. A failed or postponed step is in the result, never an error.
        """
        if dry_run:
            return await self._look(dry_run=True, thorough=True, windows=_ALL, before=_EVER)
        async with self.replicas.alone() as alone:
            if not alone:
                return None
            return await self._look(dry_run=False, thorough=True, windows=_ALL, before=_EVER)

    async def run(self, interval_seconds: float) -> None:
        """Renew this gateway's lease, and reconcile at each interval while it leads. Runs until cancelled."""
        clock = self.journal.clock
        next_look, due = clock.monotonic(), False
        while True:
            wait = BEAT_SECONDS
            try:
                await self.replicas.beat()
                await self._tell_loss()
                await self.quarantine.drop_owed()
                await self.replicas.hand_over(self._hand_over)
                if await self.replicas.lead():
                    loss = await self.replicas.lost_at()
                    if due or clock.monotonic() >= next_look or loss not in {None, self._tried_loss}:
                        postponed = await self._background_look(None if loss == self._handled_loss else loss)
                        pause = min(interval_seconds, _RETRY_SECONDS) if postponed else interval_seconds
                        next_look = clock.monotonic() + pause
                    wait = min(BEAT_SECONDS, max(0.0, next_look - clock.monotonic()))
            except CwmError:
                pass
            except Exception:
                # The loop must go on: without its beats other gateways would take over this one's intents.
                logging.getLogger(__name__).exception("reconciliation failed")
            due = await self._woken(wait)

    async def _woken(self, seconds: float) -> bool:
        """Sleep for at most ``seconds``; True if :meth:`soon` was called before."""
        try:
            async with asyncio.timeout(seconds):
                await self._due.wait()
        except TimeoutError:
            return False
        self._due.clear()
        return True

    def soon(self) -> None:
        """Reconcile as soon as possible: an operation was left over, or chunks were lost."""
        self._due.set()

    def lost(self) -> None:
        """Chunks vanished from working tiers: read back every guaranteed window that was not proven since.

        Chunks that only the disk still has are stored in Redis again. The leading gateway does both.
        """
        self._lost_at = self.journal.clock.now()
        self.soon()

    async def _tell_loss(self) -> None:
        if (lost_at := self._lost_at) is not None:
            await self.replicas.tell_loss(lost_at)
            self._lost_at = None if self._lost_at == lost_at else self._lost_at

    async def _hand_over(self, intent: Intent) -> None:
        await self.registry.hand_over(intent.tenant, intent.id)

    async def _background_look(self, loss: datetime | None) -> bool:
        """One background run; True if a postponed step may succeed soon. ``loss``: when chunks were lost, if not yet handled."""
        thorough = self._runs_since_thorough >= _THOROUGH_EVERY
        before = self.journal.clock.now() - _PATROL_EVERY
        async with self.replicas.alone() as alone:
            if not alone:
                return True
            self._tried_loss = loss or self._tried_loss
            steps = await self._look(
                dry_run=False,
                thorough=thorough,
                windows=self.patrol_windows if loss is None else _ALL,
                before=loss or before,
                after_loss=loss is not None,
            )
            proven = await self._proven()
        if proven or any(step.action == RENEWED and step.outcome is StepOutcome.DONE for step in steps):
            # There may be more of them.
            self.soon()
        postponed = {step.action for step in steps if step.outcome is StepOutcome.POSTPONED}
        if loss is not None and postponed & {"look", "store_again"}:
            # Do not repeat a run over every window after a few seconds.
            return False
        self._handled_loss = loss or self._handled_loss
        return bool(postponed)

    async def _look(
        self, *, dry_run: bool, thorough: bool, windows: int, before: datetime, after_loss: bool = False
    ) -> list[Step]:
        """Intents come first, as pins are compared only when no operation is under way; then what pins protect."""
        parts: list[Callable[[], Awaitable[list[Step]]]] = [
            lambda: self._intents(dry_run=dry_run),
            lambda: self._pins(thorough=thorough, dry_run=dry_run),
            lambda: self._debts(dry_run=dry_run),
            lambda: self._turns(dry_run=dry_run),
            lambda: self.autosave(dry_run=dry_run),
            lambda: self.retain(dry_run=dry_run),
            lambda: self.renewal(windows if dry_run else max(1, self.patrol_windows), dry_run=dry_run),
            lambda: self.patrol(windows, before, dry_run=dry_run, after_loss=after_loss),
        ]
        steps: list[Step] = []
        for part in parts:
            try:
                new_steps = await part()
            except CwmError as error:
                new_steps = [Step("look", "", "", StepOutcome.POSTPONED, error.message)]
            steps += new_steps
            if not dry_run:
                await self._note(new_steps)
        return steps

    async def _proven(self) -> list[Step]:
        """In the background alone: it mends nothing, and computes whole contexts."""
        try:
            steps = await self.prove()
        except CwmError:
            return []
        await self._note(steps)
        return steps

    async def _abandoned(self) -> list[Intent]:
        intents = await self.registry.intents_of_every_tenant()
        return [intent for intent in intents if await self.replicas.abandoned(intent)]

    async def _intents(self, *, dry_run: bool) -> list[Step]:
        steps = []
        for intent in await self._abandoned():
            if intent.operation is Operation.RELEASE:
                continue
            action = f"finish_{intent.operation}" if intent.operation is not Operation.THAW else "end_thaw"
            step = Step(action, intent.tenant, intent.window_name, StepOutcome.PLANNED)
            if not dry_run:
                self._suspect_salts.add(intent.cache_salt)
                step = await self._finish(intent, step)
            steps.append(step)
        return steps

    async def _finish(self, intent: Intent, step: Step) -> Step:
        try:
            is_ours = await self.registry.take_over(intent, self.replicas.me)
        except BaseException:
            # The takeover may have succeeded although its answer was lost.
            self.replicas.let_go(intent)
            raise
        if not is_ours:
            return Step(
                step.action, step.tenant, step.subject, StepOutcome.POSTPONED, "another gateway works on it"
            )
        self.replicas.take_up(intent)
        try:
            outcome, detail = await self._finished(intent)
        except CwmError as error:
            await self.release.leave(intent)
            away = error.kind in {ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT}
            outcome, detail = StepOutcome.POSTPONED if away else StepOutcome.FAILED, error.message
        except BaseException:
            self.replicas.let_go(intent)
            raise
        return Step(step.action, step.tenant, step.subject, outcome, detail)

    async def _finished(self, intent: Intent) -> tuple[StepOutcome, str]:
        match intent.operation:
            case Operation.FREEZE:
                window = await self.freeze.resume(intent)
                if window is not None and window.durability is Durability.FAILED:
                    return StepOutcome.FAILED, window.failure or ""
                return StepOutcome.DONE, "stored" if window else "the window is gone"
            case Operation.QUARANTINE:
                await self.quarantine.resume(intent)
                return StepOutcome.DONE, "its wrong KV is deleted"
            case _:
                # A clone lacks only its pin, which the pin audit adds; a thaw leaves nothing behind.
                await self.registry.end_intent(intent.tenant, intent.id)
                return StepOutcome.DONE, ""

    async def _pins(self, *, thorough: bool, dry_run: bool) -> list[Step]:
        if await self.kv_tier.facts() is None:
            return []
        self._suspect_salts |= {intent.cache_salt for intent in await self._abandoned() if intent.debt}
        steps = []
        for salt in sorted({*await self.registry.salts_of_every_tenant(), *self._suspect_salts}):
            sure = thorough or salt in self._suspect_salts
            new_steps = await self.pin_audit(salt, thorough=sure, dry_run=dry_run)
            if sure and not any(step.outcome is StepOutcome.POSTPONED for step in new_steps):
                self._suspect_salts.discard(salt)
            steps += new_steps
        self._runs_since_thorough = 0 if thorough else self._runs_since_thorough + 1
        return steps

    async def _debts(self, *, dry_run: bool) -> list[Step]:
        """Delete the chunks of debts. Their pins are correct by now, even if the gateway died after releasing one."""
        steps = []
        for debt_intent in await self._abandoned():
            if debt_intent.operation is not Operation.RELEASE or debt_intent.debt is None:
                continue
            subject = debt_intent.window_name or debt_intent.session_id or ""
            detail = f"{len(debt_intent.debt.hashes)} chunks to delete"
            outcome = StepOutcome.PLANNED
            if not dry_run:
                is_paid = await self._compared(debt_intent) and await self.release(debt_intent, unpin=False)
                outcome = StepOutcome.DONE if is_paid else StepOutcome.POSTPONED
            of_session = not debt_intent.window_name
            steps.append(Step("release", debt_intent.tenant, subject, outcome, detail, of_session=of_session))
        return steps

    async def _turns(self, *, dry_run: bool) -> list[Step]:
        """Forget turns whose gateway died before their answer came."""
        steps = []
        for turn in await self.registry.asked_turns_of_every_tenant(_TURNS):
            if await self.replicas.gone(turn.holder):
                if not dry_run:
                    await self.registry.drop_turn(turn)
                outcome = StepOutcome.PLANNED if dry_run else StepOutcome.DONE
                detail = f"its gateway ended before the answer to {turn.id} came"
                steps.append(
                    Step("forget_turn", turn.tenant, turn.session_id, outcome, detail, of_session=True)
                )
        return steps

    async def _compared(self, debt_intent: Intent) -> bool:
        """Whether all owned pins of the salt are correct, repaired while the debt's tokens are still known."""
        if debt_intent.debt is None or not debt_intent.debt.pinned:
            return True
        steps = await self.pin_audit(debt_intent.cache_salt, thorough=True, dry_run=False)
        return all(step.outcome is StepOutcome.DONE or step.action == "unowned_pins" for step in steps)

    async def _note(self, steps: list[Step]) -> None:
        for step in steps:
            self.journal.meter.event(f"reconcile_{step.action}_{step.outcome}")
            if not step.tenant or step.outcome is StepOutcome.POSTPONED:
                continue
            failed = step.outcome is StepOutcome.FAILED
            with suppress(CwmError):
                await self.journal.audit.record(
                    AuditEvent(
                        timestamp=self.journal.clock.now(),
                        tenant=step.tenant,
                        subject=_SUBJECT,
                        event=f"reconcile.{step.action}",
                        outcome=step.outcome.value,
                        session_id=step.subject if step.of_session else None,
                        window_name=None if step.of_session else step.subject,
                        severity=Severity.WARNING if failed else Severity.INFO,
                        details={"detail": step.detail, **acting(step.actor, step.tenant)},
                    )
                )
