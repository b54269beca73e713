"""Pass-through: forward the engine's own API under the tenant's salt, and record sessions token for token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from cwm.background import BackgroundTasks
from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.errors import (
    CwmError,
    InvalidParameterError,
    SessionAlreadyExistsError,
)
from cwm.domain.names import require_session_id
from cwm.ports.tracing import Kind, named
from cwm.services.turns.exchange import Exchange, Head, Outgoing

if TYPE_CHECKING:
    from cwm.domain.engine import EngineIdentity
    from cwm.domain.principal import Principal
    from cwm.domain.session import Session
    from cwm.ports.engine import Engine
    from cwm.ports.registry import Registry
    from cwm.ports.tracing import Span, Tracer
    from cwm.ports.turn_wire import TurnAnswer, TurnRequest, TurnWire
    from cwm.services.access.limits import Limits
    from cwm.services.audit.journal import Journal
    from cwm.services.engines.directory import EngineDirectory
    from cwm.services.sessions.open_session import OpenSession
    from cwm.services.sessions.salt_scopes import Scopes
    from cwm.services.turns.turns import Turn, Turns


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as received. ``path`` includes the query; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The engine's response. A caller that stops reading ``chunks`` early must call ``leave``."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    streamed: bool
    _exchange: Exchange

    def chunks(self) -> AsyncIterator[bytes]:
        return self._exchange.chunks()

    def leave(self) -> None:
        self._exchange.leave()


@dataclass(slots=True)
class PassThrough:
    engine: Engine
    wire: TurnWire
    registry: Registry
    directory: EngineDirectory
    open_session: OpenSession
    scopes: Scopes
    turns: Turns
    journal: Journal
    limits: Limits
    _running: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def turn(self, principal: Principal, asked: Asked) -> Answered:
        """Forward a completion or a chat and return the answer as it arrives, whatever its status.

        With a session id the turn is recorded in that session, which its first turn creates. CWM-1001, 1003,
        3002, 5001, 5002, 6001; 7001, 7002 and 7003 over a limit.
        """
        with ExitStack() as scope:
            scope.callback(await self.limits.admit(principal, asked.session_id))
            request = self.wire.read(asked.path, asked.body)
            await self.limits.require_tokens(principal)
            if asked.session_id is None:
                admitted = await self._admit(principal, request)
            else:
                request.require_recordable()
                session_id = await self._session_id(principal, asked.session_id)
                turn = scope.enter_context(self.turns.begin(principal, session_id))
                admitted = await self._admit_to_session(principal, asked.session_id, request, turn)
            return await self._start(asked, admitted, scope.pop_all(), principal)

    async def relay(self, asked: Asked) -> Answered:
        """Forward a request that needs no session and no salt."""
        admitted = _Admitted(self.wire.read(asked.path, b"{}"), asked.body)
        return await self._start(asked, admitted, ExitStack())

    async def drain(self, timeout_seconds: float) -> None:
        """Wait for running exchanges; after the timeout cancel them, and they record what they have read."""
        await self._running.stop(timeout_seconds)

    async def _session_id(self, principal: Principal, given: str) -> str:
        try:
            return require_session_id(given)
        except CwmError as refused:
            await self.journal.injection(principal, "pass_through", refused)
            raise

    async def _admit(self, principal: Principal, request: TurnRequest) -> _Admitted:
        served = await self._served(request.model)
        # vLLM has the best error for a model it does not serve; any salt of the tenant will do for that request.
        identity = served or await self.directory.identity(None)
        _require_room(request, identity)
        scope = await self.scopes.current(principal.tenant, f"tenant:{principal.tenant}")
        salt = self.directory.salt(principal.tenant, scope, identity)
        told = self._told(request)
        return _Admitted(request, request.body(salt, recorded=told), told=told)

    async def _admit_to_session(
        self, principal: Principal, session_id: str, request: TurnRequest, turn: Turn
    ) -> _Admitted:
        session = await self.registry.session(principal.tenant, session_id)
        served = await self._served(request.model)
        if session is None:
            if served is None:
                return await self._admit(principal, request)
            session = await self._open(principal, session_id, served.model)
        await turn.continues(session)
        if served is None or served.model != session.model:
            raise InvalidParameterError(
                f"Session '{session_id}' was begun with the model '{session.model}' and keeps it.",
                field="model",
                session_id=session_id,
                model=session.model,
            )
        _require_room(request, served)
        await self._note_special_tokens(principal, session, request)
        salt = self.directory.salt(principal.tenant, session.salt_scope, served)
        return _Admitted(request, request.body(salt, recorded=True), turn, told=True)

    def _told(self, request: TurnRequest) -> bool:
        """Whether to request the token ids of a turn that is not recorded, in order to count its tokens.

        If a client leaves a stream, the ids are the only way to count them.
        """
        if not self.limits.counts_tokens:
            return False
        try:
            request.require_recordable()
        except InvalidParameterError as silent:
            if request.streamed:
                raise InvalidParameterError(
                    "Where tokens are budgeted, a stream has one prompt, no 'echo' and no "
                    "'include_reasoning': false; ask without 'stream'.",
                    field="stream",
                ) from silent
            return False
        return True

    async def _served(self, model: str | None) -> EngineIdentity | None:
        try:
            return await self.directory.identity(model or None)
        except InvalidParameterError:
            return None

    async def _open(self, principal: Principal, session_id: str, model: str) -> Session:
        try:
            return await self.open_session(principal, session_id, model)
        except SessionAlreadyExistsError:
            session = await self.registry.session(principal.tenant, session_id)
            if session is None:
                raise
            return session

    async def _note_special_tokens(
        self, principal: Principal, session: Session, request: TurnRequest
    ) -> None:
        """Audit a prompt that contains control tokens: its text may imitate another role."""
        special = await self.engine.special_tokens(session.model)
        count = sum(text.count(token) for text in request.texts() for token in special)
        if not count:
            return
        await self.journal.audit.record(
            AuditEvent(
                timestamp=self.journal.clock.now(),
                tenant=principal.tenant,
                subject=principal.subject,
                event="session.special_tokens",
                outcome="passed",
                session_id=session.id,
                severity=Severity.WARNING,
                details={"count": count},
            )
        )

    async def _start(
        self, asked: Asked, admitted: _Admitted, scope: ExitStack, principal: Principal | None = None
    ) -> Answered:
        """Run the exchange in a task that the client cannot cancel; ``scope`` closes with the turn."""

        async def settle(head: Head, answer: TurnAnswer) -> None:
            with scope:
                if principal is not None:
                    await self.limits.spend(principal, answer.tokens())
                await self._settle(admitted, head, answer)

        exchange = Exchange(
            self.engine,
            Outgoing(asked.method, asked.path, admitted.body, asked.headers),
            lambda head: admitted.request.answer(streamed=head.streamed, recorded=admitted.told),
            settle,
        )
        task = self._running.start(self._run(exchange, admitted.request, asked.session_id))
        task.add_done_callback(lambda _: scope.close())
        head = await exchange.head()
        return Answered(head.status, head.headers, head.streamed, exchange)

    async def _run(self, exchange: Exchange, request: TurnRequest, session_id: str | None) -> None:
        with (
            suppress(CwmError),
            _traced(self.journal.tracer, request, session_id),
            self.journal.meter.operation("pass_through"),
        ):
            await exchange.run()

    async def _settle(self, admitted: _Admitted, head: Head, answer: TurnAnswer) -> None:
        if head.status != HTTPStatus.OK:
            return
        usage = answer.usage()
        if usage is not None:
            self.journal.meter.tokens("cached", usage.cached_tokens)
            self.journal.meter.tokens("computed", usage.prompt_tokens - usage.cached_tokens)
            self.journal.tracer.current().note(
                {
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                }
            )
        if admitted.turn is None:
            return
        token_ids = answer.token_ids()
        if token_ids is not None:
            await admitted.turn.record(token_ids)
        elif answer.begun or not head.streamed:
            await admitted.turn.lost("the engine did not tell the token ids", 0)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A request as sent to the engine. ``turn`` is set if it is recorded; ``told`` if token ids were requested."""

    request: TurnRequest
    body: bytes
    turn: Turn | None = None
    told: bool = False


def _traced(tracer: Tracer, request: TurnRequest, session_id: str | None) -> AbstractContextManager[Span]:
    """A span by OpenTelemetry's conventions for generative models; ``pass_through`` if nothing is generated."""
    if (operation := request.operation) is None:
        return tracer.span("pass_through")
    told = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "vllm"}
    if (model := named(request.model)) is not None:
        told["gen_ai.request.model"] = model
    if (conversation := named(session_id)) is not None:
        told["gen_ai.conversation.id"] = conversation
    return tracer.span(operation if model is None else f"{operation} {model}", Kind.CLIENT, told)


def _require_room(request: TurnRequest, identity: EngineIdentity) -> None:
    """Refuse a prompt that does not fit: the engine would shorten the answer silently."""
    count = request.prompt_tokens
    if count is not None and count + 1 > identity.max_model_len:
        raise InvalidParameterError(
            f"The prompt has {count} tokens; '{identity.model}' takes {identity.max_model_len}, "
            "at least one of the answer included.",
            field="prompt",
            token_count=count,
            max_model_len=identity.max_model_len,
        )
