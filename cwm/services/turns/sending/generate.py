"""Generate: one turn of a session, in token ids, for agents that speak only MCP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cwm.background import BackgroundTasks
from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import (
    CwmError,
    EngineConnectionError,
    InvalidParameterError,
    SessionNotActiveError,
)
from cwm.domain.messages import message_of, profile_of
from cwm.domain.names import require_session_id
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.visibility import Right
from cwm.ports.clock import Clock
from cwm.ports.engine import Delta, Engine, Generation
from cwm.ports.registry import Registry
from cwm.services.access.limits import Limits
from cwm.services.access.sight import session_of
from cwm.services.aside import outlasting
from cwm.services.audit.journal import Journal, of_another
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.placement import Place
from cwm.services.kv.reuse import Reuse
from cwm.services.turns.recording.grow import Grow, Template, template_from, template_of
from cwm.services.turns.recording.placement import Said
from cwm.services.turns.recording.turns import Answered, RunningTurn, Turns

OnText: TypeAlias = Callable[[str, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TurnInput:
    """The input of a turn: ``messages`` (rendered by the model's chat template) or ``text`` (appended unchanged).

    ``sampling``: further fields of the completions API. ``template_options``: fields of the chat template such as
    ``tools``; those of the session's first turn apply to all later ones.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    text: str | None = None
    max_tokens: int = 256
    sampling: Mapping[str, Any] = field(default_factory=dict)
    template_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Generated:
    """A finished turn. ``token_count``: the context after it. ``cached_tokens``: prompt tokens that were reused."""

    session_id: str
    text: str
    finish_reason: str | None
    token_count: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class _StreamedAnswer:
    """The part of a streamed answer received so far, from when it was asked for."""

    clock: Clock
    began: float = field(init=False)
    first_token_ms: int | None = None
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    router_decision: str | None = None

    def __post_init__(self) -> None:
        self.began = self.clock.monotonic()

    def take(self, delta: Delta) -> None:
        if delta.token_ids and self.first_token_ms is None:
            self.first_token_ms = round((self.clock.monotonic() - self.began) * 1000)
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        self.cached_tokens = delta.cached_tokens or self.cached_tokens
        self.router_decision = delta.decision or self.router_decision


@dataclass(slots=True)
class _Caller:
    on_text: OnText | None
    waits: bool = True
    has_tokens: bool = False


@dataclass(slots=True)
class Generate:
    registry: Registry
    engine: Engine
    directory: EngineDirectory
    place: Place
    turns: Turns
    grow: Grow
    journal: Journal
    reuse: Reuse
    limits: Limits
    _running: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def __call__(
        self,
        principal: Principal,
        session_id: str,
        turn: TurnInput,
        on_text: OnText | None = None,
    ) -> Generated:
        """Append the input, generate, record both. The earlier context is sent as its recorded token ids.

        ``on_text`` is awaited with each piece of text and the number of new tokens so far. If the caller leaves, the
        turn ends after its first token, and what was generated is recorded. CWM-1001, 1003, 2001, 3002, 7003, 9002.
        """
        require_session_id(session_id)
        if bool(turn.messages) == (turn.text is not None):
            raise InvalidParameterError("Give either messages or text.", field="messages")
        caller = _Caller(on_text)
        try:
            return await outlasting(
                self._running.start(self._exclusively(principal, session_id, turn, caller))
            )
        finally:
            caller.waits = False

    async def _exclusively(
        self, principal: Principal, session_id: str, turn: TurnInput, caller: _Caller
    ) -> Generated:
        async with self.journal.entry(principal, "session_generate", session_id=session_id) as details:
            # Nobody waits for, or holds up, turns of a session that it does not see.
            await session_of(self.registry, principal, session_id, Right.USE)
            async with self.turns.exclusive(principal, session_id) as in_flight:
                session = await session_of(self.registry, principal, session_id, Right.USE)
                details.update(of_another(principal, session.owner))
                session.require_live("a turn")
                await self.limits.require_tokens(principal)
                with ExitStack() as scope:
                    identity = await self.place(session, scope)
                    try:
                        generated = await self._turn(principal, session, identity, turn, in_flight, caller)
                    except EngineConnectionError:
                        self.directory.lose(identity.engine)
                        if caller.has_tokens or self.directory.is_router(identity.engine):
                            raise
                        await in_flight.close()
                        # Read again: it has an engine by now.
                        session = await session_of(self.registry, principal, session_id, Right.USE)
                        again = await self.place(session, scope)
                        if again.engine == identity.engine:
                            raise
                        generated = await self._turn(principal, session, again, turn, in_flight, caller)
            details.update(token_count=generated.token_count, cached_tokens=generated.cached_tokens)
        return generated

    async def _turn(
        self,
        principal: Principal,
        session: Session,
        identity: EngineIdentity,
        turn: TurnInput,
        in_flight: RunningTurn,
        caller: _Caller,
    ) -> Generated:
        context = await self.registry.session_tokens(principal.tenant, session.id)
        template = self._template(session, context, turn)
        prompt = context + await self._new_ids(principal, session, identity, context, turn, template)
        room = identity.max_model_len - len(prompt)
        if room < 1:
            raise InvalidParameterError(
                f"The context would have {len(prompt)} tokens; '{identity.model}' takes "
                f"{identity.max_model_len}, the answer included.",
                token_count=len(prompt),
                max_model_len=identity.max_model_len,
            )
        generation = Generation(
            model=session.model,
            token_ids=prompt,
            cache_salt=self.directory.salt(principal.tenant, session.salt_scope, identity),
            max_tokens=min(turn.max_tokens, room),
            sampling=turn.sampling,
            weights=identity.expected,
            engine=identity.engine,
            session=(session.tenant, session.id),
        )
        metadata = {**session.metadata, **template.as_metadata()}
        statement = await self._said(session, turn, template)
        await in_flight.ask(session, statement, cache_salt=generation.cache_salt, block=identity.reused_block)
        answer = await self._run(principal, session, generation, metadata, in_flight, caller)
        self.reuse.turn(principal.tenant, answer.prompt_tokens, answer.cached_tokens)
        return Generated(
            session_id=session.id,
            text="".join(answer.texts),
            finish_reason=answer.finish_reason,
            token_count=len(prompt) + len(answer.token_ids),
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=len(answer.token_ids),
            cached_tokens=answer.cached_tokens,
        )

    async def _said(self, session: Session, turn: TurnInput, template: Template) -> Said:
        """What the turn adds, and whose line it goes on with: that of the current turn."""
        content = turn.messages or [{"role": "prompt", "content": turn.text}]
        messages = tuple(message_of(message) for message in content)
        current = await self.registry.current_turn(session.tenant, session.id)
        if current is not None:
            return Said(messages, current.profile, whole=False)
        return Said(messages, profile_of(turn.messages, template.options.get("tools")))

    def _template(self, session: Session, context: TokenIds, turn: TurnInput) -> Template:
        """The template of the first turn, which renders every later turn too."""
        if context:
            return template_from(session.metadata)
        return template_of(turn.messages, turn.template_options)

    async def _new_ids(
        self,
        principal: Principal,
        session: Session,
        identity: EngineIdentity,
        context: TokenIds,
        turn: TurnInput,
        template: Template,
    ) -> TokenIds:
        grow = self.grow.on(identity.engine, principal)
        if turn.text is not None:
            return await grow.text(session.model, turn.text, opening=not context)
        await grow.refuse_forged(session.model, turn.messages, turn.template_options)
        if not context:
            return await grow.first(session.model, turn.messages, turn.template_options)
        return await grow.following(session.model, turn.messages, template, context[-1])

    async def _run(
        self,
        principal: Principal,
        session: Session,
        generation: Generation,
        metadata: dict[str, Any],
        in_flight: RunningTurn,
        caller: _Caller,
    ) -> _StreamedAnswer:
        """Stream the answer and record what was received, also if the engine dies half-way.

        CWM-3002 if the session moved on or ended meanwhile; the turn is then not part of it. ``recorded`` of any
        other error says whether it is.
        """
        answer, recorded = _StreamedAnswer(self.turns.clock), True
        engine_error: CwmError | None = None
        try:
            async with aclosing(self.engine.stream(generation)) as deltas:
                async for delta in deltas:
                    answer.take(delta)
                    caller.has_tokens = caller.has_tokens or bool(answer.token_ids)
                    if not caller.waits and answer.token_ids:
                        break
                    if caller.on_text is not None and delta.text:
                        await caller.on_text(delta.text, len(answer.token_ids))
        except CwmError as error:
            engine_error = error
            raise
        finally:
            if answer.token_ids:
                # An answer that did not come to its end has no count of the prompt.
                answer.prompt_tokens = answer.prompt_tokens or len(generation.token_ids)
            await self.limits.spend(principal, answer.prompt_tokens + len(answer.token_ids))
            if answer.token_ids:
                end = Answered(
                    generation.token_ids + tuple(answer.token_ids),
                    len(generation.token_ids),
                    message_of({"role": "assistant", "content": "".join(answer.texts)}),
                    answer.cached_tokens,
                    first_token_ms=answer.first_token_ms,
                    router_decision=answer.router_decision,
                )
                recorded = await in_flight.record(end, metadata, revision=session.revision) is not None
                if in_flight.missed is not None:
                    self.journal.meter.event(f"turn_missed_{in_flight.missed}")
                if recorded and engine_error is not None:
                    engine_error.recorded = len(end.token_ids)
        if not recorded:
            raise SessionNotActiveError(
                f"Session '{session.id}' moved on or is no longer active: the turn is no part of it. "
                "Look at it and take the turn again.",
                session_id=session.id,
                recorded=False,
            )
        return answer

    async def settle(self) -> None:
        """Wait for turns whose callers have disconnected."""
        await self._running.settled()
