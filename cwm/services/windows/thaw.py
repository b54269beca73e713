"""Thaw: a new session that continues from a window; its KV is loaded instead of computed."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

from cwm.background import BackgroundTasks
from cwm.domain.audit import Severity
from cwm.domain.canary import Origin
from cwm.domain.engine import Difference, EngineIdentity, differences
from cwm.domain.errors import (
    CwmError,
    EngineResponseError,
    InvalidParameterError,
    SessionNotActiveError,
    WindowIncompatibleError,
)
from cwm.domain.intent import Intent
from cwm.domain.names import require_session_id, require_window_name
from cwm.domain.planner import Plan
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.principal import TENANT, Principal
from cwm.domain.session import BRANCHED_FROM, Session, SessionState
from cwm.domain.verdict import Evidence, Verification, skipped
from cwm.domain.visibility import Right, circle_of_new
from cwm.domain.window import Window
from cwm.ports.clock import Clock
from cwm.ports.engine import Completion, Engine
from cwm.ports.kv_tier import KvTier, Prefetched
from cwm.ports.meter import Meter
from cwm.ports.registry import Registry
from cwm.services.access.sight import window_of
from cwm.services.access.storage import Storage
from cwm.services.aside import outlasting, to_its_end
from cwm.services.audit.journal import Journal, of_another
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.control import Control
from cwm.services.kv.origins import Origins
from cwm.services.kv.planner import Planner
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.reuse import Reuse
from cwm.services.kv.verify import Comparison, Verify, canary_of
from cwm.services.replicas import Replicas
from cwm.services.sessions.end_session import EndSession
from cwm.services.sessions.open_session import scope_of_session
from cwm.services.turns.recording.grow import Template, template_from
from cwm.services.turns.sending.generate import Generate, Generated, TurnInput
from cwm.services.windows.quarantine import Quarantine
from cwm.services.windows.receipt import Receipt, is_partial, warning_of

_TOKEN_FIXES: Final = {
    "tokenizer_digest": ("tokenizer", "Serve the model with the tokenizer it had and thaw again."),
    "template_digest": (
        "chat template",
        "Serve the model with the chat template it had, or thaw with accept_template to go on with the new one.",
    ),
}
_HEARTBEATS_SECONDS = 2.5  # vLLM's heartbeat to LMCache has an interval of one second

_NOT_CONTINUED: Final = frozenset({Verification.MISMATCH, Verification.UNDECIDED})
_NO_CANARY: Final = "the window has no canary, or one of an earlier version of CWM"


@dataclass(frozen=True, slots=True)
class Thawed:
    """The result of a thaw. ``restoration_time_ms`` ends when the engine holds the context; ``verify_ms`` is extra."""

    session: Session
    window: Window
    restoration_time_ms: int
    partial: bool
    receipt: Receipt
    warning: str | None = None
    continuation: Generated | None = None


@dataclass(frozen=True, slots=True)
class _Loading:
    plan: Plan
    prefetched: Prefetched
    prefetch_ms: float


@dataclass(slots=True)
class Thaw:
    registry: Registry
    engine: Engine
    kv_tier: KvTier
    directory: EngineDirectory
    generate: Generate
    verify: Verify
    control: Control
    quarantine: Quarantine
    planner: Planner
    origins: Origins
    replicas: Replicas
    journal: Journal
    meter: Meter
    reuse: Reuse
    clock: Clock
    end_session: EndSession
    visibility: str = TENANT
    storage: Storage | None = None
    _restoring: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def __call__(
        self,
        principal: Principal,
        window_name: str,
        new_session_id: str | None = None,
        continuation_prompt: str | None = None,
        *,
        accept_template: bool = False,
        verify: bool = True,
        visibility: str | None = None,
    ) -> Thawed:
        """Restore a window into a new session, which is by default not more visible. The window never changes.

        Lost blocks, and those of another engine, are computed again: the result is then ``partial``, with a
        warning that says how many tokens and why. CWM-1001/1002/1003, 2002, 3001, 4003, 4004, 5001, 6001. CWM-3005
        when the tokenizer changed, or the chat template did and ``accept_template`` is not set. With ``verify``
        the restored KV is compared with the window's canary, and in doubt with the context computed afresh; KV that is wrong is
        deleted, and where the comparison does not say that it is right the session goes on from computed KV. If the continuation fails, the session ends: the caller may not know its id,
        and may ask for the same id again.
        """
        require_window_name(window_name)
        session_id = require_session_id(new_session_id or _session_id_for(window_name))
        if continuation_prompt:
            # The token budget is checked before the thaw, so that the continuation is not refused after it.
            await self.generate.limits.require_tokens(principal)
        async with self.journal.entry(
            principal, "window_thaw", session_id=session_id, window_name=window_name
        ) as details:
            window = await window_of(self.registry, principal, window_name, Right.CONTENTS)
            if self.storage is not None:
                await self.storage.require_room(principal.tenant, principal.subject)
            circle = circle_of_new(principal, visibility, self.visibility, window)
            details.update(of_another(principal, window.owner))
            # Read now: the session is removed with its last window, which may be deleted at any time from here on.
            source = await self.registry.session(window.tenant, window.session_id, any_state=True)
            template = template_from(source.metadata if source else {})
            intent = await self._begin(window, session_id)
            try:
                with ExitStack() as work:
                    thawed = await self._thaw(
                        principal,
                        window,
                        intent,
                        template,
                        circle,
                        work,
                        accept_template=accept_template,
                        verify=verify,
                    )
            except BaseException:
                await to_its_end(self._end(intent))
                raise
            details.update(
                **_proof(thawed.receipt.evidence),
                tokens_restored=thawed.receipt.tokens_restored,
                tokens_recomputed=thawed.receipt.tokens_recomputed,
                partial=thawed.partial,
                restored_ms=thawed.restoration_time_ms,
                tokens_by_tier=dict(thawed.receipt.tokens_by_tier),
            )
        if continuation_prompt:
            turn = TurnInput(messages=[{"role": "user", "content": continuation_prompt}])
            try:
                continuation = await self.generate(principal, session_id, turn)
            except CwmError as error:
                # A session that has moved on is in use by a caller that knows its id.
                if not isinstance(error, SessionNotActiveError):
                    with suppress(CwmError):
                        async with self.journal.entry(principal, "session_delete", session_id=session_id):
                            await self.end_session.now(thawed.session)
                        error.context["deleted_session"] = session_id
                raise
            return replace(thawed, continuation=continuation)
        return thawed

    async def settle(self) -> None:
        """Wait for requests to the engine whose callers have disconnected."""
        await self._restoring.settled()
        await self.quarantine.settle()
        await self.control.settle()
        await self.verify.settle()
        await self.planner.settle()

    async def _begin(self, window: Window, session_id: str) -> Intent:
        beginning = asyncio.create_task(self.registry.begin_thaw(window, session_id, self.clock.now()))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await to_its_end(self._end_if_written(beginning))
            raise

    async def _end_if_written(self, beginning: asyncio.Task[Intent]) -> None:
        """End the intent if it was written although the caller is gone: no other gateway ends it while this one lives."""
        with suppress(CwmError):
            await self._end(await beginning)

    async def _end(self, intent: Intent) -> None:
        self.replicas.let_go(intent)
        with suppress(CwmError):
            await self.registry.end_intent(intent.tenant, intent.id)

    async def _thaw(
        self,
        principal: Principal,
        window: Window,
        intent: Intent,
        template: Template,
        circle: str,
        work: ExitStack,
        *,
        accept_template: bool,
        verify: bool,
    ) -> Thawed:
        snapshot = await self.registry.snapshot(principal.tenant, window.snapshot_id)
        identity = await self._engine_of(window, snapshot.token_ids, work)
        changes = differences(window.identity, identity)
        _refuse_other_tokens(window, changes, accept_template=accept_template)
        if len(snapshot.token_ids) > identity.max_model_len:
            raise InvalidParameterError(
                f"The window has {len(snapshot.token_ids)} tokens, '{identity.model}' takes "
                f"{identity.max_model_len}.",
                token_count=len(snapshot.token_ids),
                max_model_len=identity.max_model_len,
            )
        prefix = Prefix(
            fitting(snapshot.token_ids, identity),
            self.directory.salt(principal.tenant, window.salt_scope, identity),
            identity,
        )
        started = self.clock.monotonic()
        loading, counters = await asyncio.gather(self._load(prefix), self.origins.before(identity))
        answer, engine_ms = await self._restore(prefix, loading.plan)
        elapsed_ms = self._ms_since(started)
        self.directory.confirm(identity, answer)
        by_tier = await self.origins.split(answer, counters, loading.prefetched.loaded, prefix)
        self.planner.learn(
            prefix, loading.plan, answer, by_tier, prefetch_ms=loading.prefetch_ms, engine_ms=engine_ms
        )
        verify_started = self.clock.monotonic()
        evidence = await self._verify_kv(principal, window, prefix, changes, answer, verify=verify)
        verify_ms = self._ms_since(verify_started)
        salt_scope = window.salt_scope
        if evidence.verification is Verification.MISMATCH:
            await self.quarantine(principal, window, prefix, evidence)
        if evidence.verification in _NOT_CONTINUED:
            salt_scope = scope_of_session(intent.session_id or "")
            prefix, answer = await self._compute_apart(principal.tenant, prefix, salt_scope)
            by_tier = {}
            elapsed_ms = self._ms_since(started) - verify_ms
        receipt = Receipt(
            tokens_restored=answer.cached_tokens,
            tokens_recomputed=answer.prompt_tokens - answer.cached_tokens,
            tokens_by_tier=by_tier,
            blocks_found=loading.prefetched.found,
            blocks_total=prefix.chunk_count,
            prefetch_ms=loading.prefetch_ms,
            engine_ms=engine_ms,
            plan=loading.plan.loaded_from(by_tier),
            evidence=evidence,
            verify_ms=verify_ms,
            engine_changes=changes,
        )
        self._count(principal, receipt)
        is_proven = evidence.verification.is_good and evidence.origin is not None
        session = await self._open(
            principal,
            window,
            intent,
            template,
            snapshot.token_ids,
            salt_scope,
            circle,
            identity,
            proven=prefix.token_ids if is_proven else (),
        )
        partial = is_partial(window, prefix, receipt)
        if partial:
            self.meter.event("thaw_partial")
        return Thawed(
            session, window, round(elapsed_ms), partial, receipt, warning_of(window, prefix, receipt)
        )

    def _count(self, principal: Principal, receipt: Receipt) -> None:
        self.reuse.thaw(
            principal.tenant, receipt.tokens_by_tier, receipt.tokens_restored, receipt.tokens_recomputed
        )
        self.meter.verified(receipt.evidence.verification)
        if receipt.prefetch_ms:
            self.meter.thaw_phase("prefetch", receipt.prefetch_ms)
        self.meter.thaw_phase("engine", receipt.engine_ms)
        if receipt.evidence.distance.places:
            self.meter.thaw_phase("verify", receipt.verify_ms)

    async def _engine_of(self, window: Window, token_ids: TokenIds, work: ExitStack) -> EngineIdentity:
        try:
            return await self.generate.place.anywhere(
                window.model, window.tenant, work, window.salt_scope, token_ids, window.identity
            )
        except InvalidParameterError as unserved:
            raise EngineResponseError(
                f"Window '{window.name}' was frozen with the model '{window.model}', "
                "which the engine does not serve now. Serve it and thaw again.",
                **unserved.context,
            ) from unserved

    async def _load(self, prefix: Prefix) -> _Loading:
        """Prefetch the planned tokens from the lower tiers into L1. Without LMCache the engine computes everything."""
        plan = await self.planner.plan(prefix)
        if not prefix.chunk_count:
            return _Loading(plan, Prefetched(0, 0), 0.0)
        started = self.clock.monotonic()
        try:
            # Even if nothing is to be loaded: the call shows whether LMCache answers.
            prefetched = await self.kv_tier.prefetch(prefix.key_of(plan.load_tokens))
        except CwmError:
            prefetched = Prefetched(0, prefix.chunk_count)
            self.meter.event("thaw_without_lmcache")
            # A vLLM that has not yet noticed the loss of LMCache waits for it in its next request, and dies.
            await asyncio.sleep(_HEARTBEATS_SECONDS)
        return _Loading(plan, prefetched, self._ms_since(started) if prefetched.total else 0.0)

    async def _restore(self, prefix: Prefix, plan: Plan) -> tuple[Completion, float]:
        """Send one request and never abandon it: a disconnect during the KV load can kill the engine."""
        started = self.clock.monotonic()
        request = self._restoring.start(
            self.engine.complete(replace(prefix.request(), load_tokens=plan.load_tokens, tell_loaded=True))
        )
        answer = await outlasting(request)
        return answer, self._ms_since(started)

    def _ms_since(self, started: float) -> float:
        return round((self.clock.monotonic() - started) * 1000, 3)

    async def _compute_apart(self, tenant: str, prefix: Prefix, salt_scope: str) -> tuple[Prefix, Completion]:
        """Have the engine compute the context under a salt of its session's own, where nothing else is."""
        apart = replace(prefix, cache_salt=self.directory.salt(tenant, salt_scope, prefix.identity))
        request = self._restoring.start(self.engine.complete(replace(apart.request(), load_tokens=0)))
        return apart, await outlasting(request)

    async def _verify_kv(
        self,
        principal: Principal,
        window: Window,
        prefix: Prefix,
        changes: tuple[Difference, ...],
        answer: Completion,
        *,
        verify: bool,
    ) -> Evidence:
        """Compare the restored KV with the window's canary and, if that leaves a doubt, with the context computed afresh."""
        if reason := self._why_not_verified(window, prefix, changes, answer, verify=verify):
            return skipped(reason)
        canary = await self.registry.canary(window.tenant, window.snapshot_id, prefix.cache_salt)
        if canary is None:
            return skipped(_NO_CANARY)
        comparison = await self.verify.compare(prefix, canary)
        if comparison.evidence.verification is not Verification.UNDECIDED:
            return comparison.evidence
        evidence = await self.control(window.tenant, prefix, canary, comparison)
        if evidence.verification is Verification.CANARY_STALE:
            await self._renew_canary(principal, window, comparison)
        return evidence

    def _why_not_verified(
        self,
        window: Window,
        prefix: Prefix,
        changes: tuple[Difference, ...],
        answer: Completion,
        *,
        verify: bool,
    ) -> str:
        if not verify or self.verify.most_places == 0:
            return "switched off"
        if prefix.identity.no_reuse:
            return prefix.identity.no_reuse
        if any(not change.changes_tokens for change in changes):
            return "another engine froze the window"
        if answer.cached_tokens == 0:
            return "nothing was restored"
        if len(prefix.token_ids) != min(window.token_count, window.identity.max_model_len - 1):
            return "the context fills the model"
        return ""

    async def _renew_canary(self, principal: Principal, window: Window, comparison: Comparison) -> None:
        """Restored and computed KV agree, so the engine computes otherwise than it did: the look at it now is the canary from here on."""
        self.meter.event("canary_stale")
        every, few = comparison.looks[-2:]
        await self.registry.record_canary(window, canary_of((every, few), Origin.INHERITED))
        await self.journal.note(
            principal,
            "window.canary_stale",
            "success",
            {"deviation": comparison.evidence.distance.largest},
            Severity.WARNING,
            window_name=window.name,
        )

    async def _open(
        self,
        principal: Principal,
        window: Window,
        intent: Intent,
        template: Template,
        token_ids: TokenIds,
        salt_scope: str,
        circle: str,
        identity: EngineIdentity,
        *,
        proven: TokenIds,
    ) -> Session:
        now = self.clock.now()
        session = Session(
            tenant=principal.tenant,
            id=intent.session_id or "",
            owner=principal.subject,
            model=window.model,
            state=SessionState.THAWED,
            salt_scope=salt_scope,
            token_count=len(token_ids),
            revision=0,
            created_at=now,
            updated_at=now,
            thawed_from=window.name,
            branch_token=len(token_ids),
            metadata=template.as_metadata() | ({BRANCHED_FROM: window.turn_id} if window.turn_id else {}),
            circle=circle,
            engine=identity.engine or None,
            proven_tokens=len(proven),
            proven_digest=digest(proven) if proven else None,
        )
        return await self.registry.add_session(session, token_ids, intent.id, window.turn_id)


def _proof(evidence: Evidence) -> dict[str, Any]:
    """The verdict and what it rests on, for the audit log."""
    return {
        "verification": evidence.verification.value,
        "compared_with": evidence.compared_with,
        "canary_origin": evidence.origin.value if evidence.origin else None,
        "places": evidence.distance.places,
        "deviation": evidence.distance.largest,
    }


def _session_id_for(window_name: str) -> str:
    return f"thaw_{window_name[:46]}_{uuid4().hex[:12]}"


def _refuse_other_tokens(window: Window, changes: tuple[Difference, ...], *, accept_template: bool) -> None:
    """CWM-3005 for another tokenizer, which gives the ids another meaning, or an unaccepted chat template."""
    for change in changes:
        if not change.changes_tokens or (change.field == "template_digest" and accept_template):
            continue
        what, fix = _TOKEN_FIXES[change.field]
        raise WindowIncompatibleError(
            f"Window '{window.name}' was frozen with another {what} of '{window.model}'. {fix}",
            window_name=window.name,
            field=change.field,
            frozen=change.then,
            now=change.now,
        )
