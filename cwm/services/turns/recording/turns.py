"""Turns: the turns in flight of each session in this process, and the record of each turn."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias
from uuid import uuid4

from cwm.domain.answers import calls_digest
from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.conversation import chained
from cwm.domain.divergence import Cause, Divergence, Miss, miss
from cwm.domain.errors import CwmError, SessionMovedOnError, StorageQuotaExceededError
from cwm.domain.keep import KeepPolicies
from cwm.domain.main_line import Standing
from cwm.domain.origin import ORIGIN
from cwm.domain.prefix import TokenIds, digests_at, pack, unpack
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.turn import Message, Turn, TurnParts, TurnTag, compaction_tag
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.ports.tracing import UNTRACED, Tracer, trace_id_of
from cwm.ports.turns import TurnRecords
from cwm.services.access.storage import Storage
from cwm.services.turns.recording.placement import Placement, Prompt, Said

_Key: TypeAlias = tuple[str, str]
_MOST_LINES: Final = 256
_MOST_CONTEXTS: Final = 64
_LARGEST_CONTEXT: Final = 256 * 1024
"""In bytes: 65,536 tokens."""


@dataclass(slots=True)
class _Lock:
    """A session's lock. ``users``: how many tasks hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """How a turn ended: the token ids of prompt and answer, where the answer begins, and the answer as a message.

    ``abandoned``: its client did not wait for the whole answer. ``first_token_ms``: from the request to the engine to the first token that
    arrived, which is the last of an answer in one piece. ``router_decision``: what a router in front of the engines says that it chose.
    """

    token_ids: TokenIds
    prompt_tokens: int
    message: Message | None = None
    cached_tokens: int | None = None
    abandoned: bool = False
    first_token_ms: int | None = None
    router_decision: str | None = None


@dataclass(slots=True)
class Turns:
    records: TurnRecords
    audit: AuditLog
    clock: Clock
    keep: KeepPolicies = field(default_factory=KeepPolicies)
    tracer: Tracer = UNTRACED
    storage: Storage | None = None
    lines: OrderedDict[_Key, Sequence[str]] = field(default_factory=OrderedDict)
    contexts: OrderedDict[_Key, bytes] = field(default_factory=OrderedDict)
    _running: Counter[_Key] = field(default_factory=Counter)
    _locks: dict[_Key, _Lock] = field(default_factory=dict)
    _leftovers: list[Turn] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Whether no session has a turn, running or waiting."""
        return not self._running and not self._locks

    def in_flight(self, tenant: str, session_id: str) -> bool:
        return self._running[tenant, session_id] > 0

    @contextmanager
    def begin(self, principal: Principal, session_id: str) -> Iterator[RunningTurn]:
        """A turn with a complete prompt. Several may run at once: they are ordered by when they were asked."""
        with self._counted((principal.tenant, session_id)):
            yield RunningTurn(self, principal, session_id)

    @asynccontextmanager
    async def exclusive(self, principal: Principal, session_id: str) -> AsyncIterator[RunningTurn]:
        """A turn that continues the current one. Only one runs at a time in a session."""
        key = (principal.tenant, session_id)
        session_lock = self._locks.setdefault(key, _Lock())
        session_lock.users += 1
        try:
            async with session_lock.lock:
                with self._counted(key):
                    turn = RunningTurn(self, principal, session_id)
                    try:
                        yield turn
                    finally:
                        await turn.close()
        finally:
            session_lock.users -= 1
            if not session_lock.users:
                del self._locks[key]

    async def forget(self, *turns: Turn) -> None:
        """Forget turns that left no answer, and those for which that failed before."""
        self._leftovers.extend(turns)
        with suppress(CwmError):
            while self._leftovers:
                turn = self._leftovers.pop()
                try:
                    await self.records.drop_turn(turn)
                except BaseException:
                    self._leftovers.append(turn)
                    raise

    def remember(self, turn: Turn, messages: Sequence[Message], context: bytes) -> None:
        """Keep what was said in the turn at hand, and its packed token ids: most requests go on from one of the newest."""
        self.lines[turn.tenant, turn.id] = tuple(message.digest for message in messages)
        while len(self.lines) > _MOST_LINES:
            self.lines.popitem(last=False)
        if len(context) > _LARGEST_CONTEXT:
            return
        self.contexts[turn.tenant, turn.id] = context
        while len(self.contexts) > _MOST_CONTEXTS:
            self.contexts.popitem(last=False)

    async def tokens(self, turn: Turn) -> TokenIds:
        """The token ids of an ended turn's context. CWM-4004."""
        context = self.contexts.get((turn.tenant, turn.id))
        return await self.records.turn_tokens(turn) if context is None else unpack(context)

    @contextmanager
    def _counted(self, key: _Key) -> Iterator[None]:
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]


@dataclass(slots=True)
class RunningTurn:
    """A turn in flight."""

    _turns: Turns
    _principal: Principal
    _session_id: str
    _statement: Said = field(default_factory=Said)
    _pending: Turn | None = None
    _id: str | None = None
    _block: int = 0
    _missed: Miss | None = None
    _compacted: Turn | None = None
    _rewritten: bool = False

    @property
    def id(self) -> str | None:
        """The id of the turn, once it is asked."""
        return self._id

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def diverged(self) -> Divergence | None:
        """Where its request leaves what was recorded."""
        return self._statement.diverged

    @property
    def missed(self) -> Miss | None:
        """Why the engine computed more of its prompt than was to be expected, once it is recorded."""
        return self._missed

    @property
    def compacts(self) -> bool:
        """Whether it goes on from a summary, once it is recorded."""
        return self._compacted is not None

    @property
    def rewritten(self) -> bool:
        """Whether the model's template renders what was recorded to other tokens, once it is recorded."""
        return self._rewritten

    async def line(self, current: Turn) -> Sequence[str]:
        """The digests of the messages of an ended turn. CWM-4004."""
        digests = self._turns.lines.get((current.tenant, current.id))
        return await self._turns.records.message_digests(current) if digests is None else digests

    async def ask(
        self,
        session: Session,
        statement: Said,
        *,
        cache_salt: str | None = None,
        block: int = 0,
        number: int | None = None,
    ) -> None:
        """Record that the turn is asked in ``session``, of an engine that reuses KV in blocks of so many tokens (0: unknown).

        CWM-3002 if the session is not live, or its next turn is not this ``number``; CWM-4001, 4003.
        """
        session.require_live("a turn")
        await self._require_room(session)
        turns = self._turns
        turn = Turn(
            tenant=session.tenant,
            session_id=session.id,
            id=f"turn_{uuid4().hex}",
            author=self._principal.subject,
            asked_at=turns.clock.now(),
            client=ORIGIN.get().user_agent or "",
            profile=statement.profile,
            chain=statement.chain,
            joined=statement.joined,
            compactions=statement.compactions,
            cache_salt=cache_salt,
            trace_id=trace_id_of(turns.tracer.carrier()),
        )
        if (diverged := statement.diverged) is not None:
            turn = replace(
                turn,
                diverged_at=diverged.message,
                cause=diverged.cause.value,
                old_message=diverged.old,
                new_message=diverged.new,
            )
        await turns.forget()
        self._statement, self._id, self._block = statement, turn.id, block
        self._pending = await turns.records.begin_turn(turn, session.created_at, number)
        if self._pending is None:
            raise SessionMovedOnError(
                f"Session '{session.id}' moved on or is no longer active; look at it and take the turn again.",
                session_id=session.id,
            )

    async def record(
        self,
        end: Answered,
        metadata: Mapping[str, Any] | None = None,
        *,
        revision: int | None = None,
    ) -> Session | None:
        """Record the answer under the turn's parent; on the main line it becomes the session's context.

        Returns None and writes an audit event if the session was frozen or ended meanwhile, if another session has
        its id now, or if it is no longer at ``revision``. CWM-4001.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        total = len(end.token_ids)
        prompt = Prompt(end.token_ids, pack(end.token_ids), end.prompt_tokens)
        digests = digests_at(prompt.packed, (prompt.length, total))
        turn = replace(
            pending,
            prompt_tokens=prompt.length,
            total_tokens=total,
            prompt_digest=digests[prompt.length],
            digest=digests[total],
            cached_tokens=end.cached_tokens,
            abandoned=end.abandoned,
            first_token_ms=end.first_token_ms,
            router_decision=end.router_decision,
            ended_at=self._turns.clock.now(),
        )
        turn = self._with_keys(turn, end)
        records = self._turns.records
        try:
            parentage = await Placement(records, self._turns.tokens)(turn, prompt, self._statement)
            messages = [*self._statement.messages, *((end.message,) if end.message else ())]
            if not self._turns.keep.of(turn.tenant).messages:
                messages = [Message(message.digest) for message in messages]
            turn = replace(
                turn,
                parent_at=parentage.parent_at,
                parent_messages=parentage.parent_messages,
                continues=parentage.continues,
                main=parentage.standing is not Standing.SIDE,
                compacts=None if parentage.compacts is None else parentage.compacts.id,
                cause=Cause.TEMPLATE.value if parentage.rewritten else turn.cause,
            )
            if (parent := parentage.parent) is not None:
                self._missed = miss(turn, parent, self._block) if self._block else None
                turn = replace(turn, parent=parent.id, missed=self._missed and self._missed.value)
            session = await records.end_turn(
                turn,
                TurnParts(
                    end.token_ids[parentage.parent_at :],
                    tuple(messages[parentage.parent_messages if self._statement.whole else 0 :]),
                ),
                metadata,
                revision,
                begins_line=parentage.standing is Standing.FIRST,
            )
        except CwmError:
            self._pending = pending
            raise
        if self._statement.whole:
            self._turns.remember(turn, messages, prompt.packed)
        if session is None:
            await self.lost("session moved on or no longer live", total)
        else:
            self._compacted, self._rewritten = parentage.compacts, parentage.rewritten
        return session

    def _with_keys(self, turn: Turn, end: Answered) -> Turn:
        """The ended turn with the keys of its answer. An abandoned one keeps that of its request, which is found when it is sent again."""
        statement, answer = self._statement, end.message
        if turn.chain is None or answer is None or end.abandoned:
            return turn
        turn = replace(turn, chain=chained(turn.chain, answer.digest))
        if statement.core_chain is None:
            return turn
        are_messages_kept = self._turns.keep.of(turn.tenant).messages
        return replace(
            turn,
            core_chain=chained(statement.core_chain, answer.digest),
            calls=calls_digest(answer, *statement.hints) if are_messages_kept else None,
        )

    async def tag_compacted(self) -> None:
        """Tag the turn that it compacts, until its session is deleted; a tag of this name that there is stays."""
        if (before := self._compacted) is None:
            return
        turns = self._turns
        tag = TurnTag(
            tenant=before.tenant,
            name=compaction_tag(before),
            session_id=before.session_id,
            turn_id=before.id,
            author=self._principal.subject,
            created_at=turns.clock.now(),
            automatic=True,
        )
        with suppress(CwmError):
            if await turns.records.tag(tag) == tag:
                details = {"tag": tag.name, "turn": tag.turn_id}
                await self._note("session.compaction", "tagged", Severity.INFO, details)

    async def close(self) -> None:
        """Forget a turn that left no answer."""
        pending, self._pending = self._pending, None
        if pending is not None:
            await self._turns.forget(pending)

    async def only_asked(self, token_count: int) -> None:
        """Audit a turn of which only the prompt is recorded as token ids."""
        details = {
            "reason": "the engine did not tell the token ids of its answer",
            "token_count": token_count,
        }
        await self._note("session.turn", "prompt_recorded", Severity.INFO, details)

    async def lost(self, reason: str, token_count: int) -> None:
        """Audit a turn that ran but is not part of the session."""
        details = {"reason": reason, "token_count": token_count}
        await self._note("session.turn", "not_recorded", Severity.WARNING, details)

    async def require_storage(self, owner: str) -> None:
        """CWM-4003 where what this owner of a session, or its tenant, may store is used up."""
        if self._turns.storage is not None:
            await self._turns.storage.require_room(self._principal.tenant, owner)

    async def _require_room(self, session: Session) -> None:
        """Where the session's tree is as large as it may be, remove side branches. CWM-3002 (retryable), 4003; 4003 over its owner's quota."""
        await self.require_storage(session.owner)
        records, limit = self._turns.records, self._turns.keep.of(session.tenant).tree
        size = await records.tree_size(session.tenant, session.id) if limit else None
        if size is None or not limit.is_reached(size):
            return
        removed = await records.make_room(session, limit.with_room())
        if removed.turns:
            details = {"turns": removed.turns, "token_count": removed.tokens}
            await self._note("session.make_room", "removed", Severity.INFO, details)
            size = size.less(removed)
        if limit.is_reached(size):
            raise StorageQuotaExceededError(
                f"Session '{session.id}' has {size.turns} turns with {size.tokens} stored tokens: a session may keep "
                "no more. Go on in another one (turn_branch opens one at any turn), or delete turns (turn_delete).",
                session_id=session.id,
                turns=size.turns,
                tokens=size.tokens,
                most_turns=limit.turns,
                most_tokens=limit.tokens,
            )

    async def _note(self, event: str, outcome: str, severity: Severity, details: dict[str, Any]) -> None:
        await self._turns.audit.record(
            AuditEvent(
                timestamp=self._turns.clock.now(),
                tenant=self._principal.tenant,
                subject=self._principal.subject,
                event=event,
                outcome=outcome,
                session_id=self._session_id,
                severity=severity,
                details=details,
            )
        )
