"""Pass-through: forward the engine's own API under the tenant's salt, and record sessions token for token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final
from uuid import uuid4

from cwm.background import BackgroundTasks
from cwm.domain.divergence import Divergence, divergence
from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import (
    CwmError,
    InvalidParameterError,
    SessionAlreadyExistsError,
    UnrelatedTurnError,
)
from cwm.domain.messages import message_of
from cwm.domain.names import require_session_id
from cwm.domain.principal import Principal
from cwm.domain.session import Session, SessionState
from cwm.domain.turn import Message, Profile
from cwm.ports.engine import Engine
from cwm.ports.registry import Registry
from cwm.ports.tracing import Span, SpanKind, Tracer, named
from cwm.ports.turn_wire import TurnAnswer, TurnRequest, TurnWire
from cwm.services.access.limits import Limits
from cwm.services.aside import aside
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.reuse import Reuse
from cwm.services.sessions.open_session import OpenSession
from cwm.services.sessions.salt_scopes import SaltScopes
from cwm.services.turns.continuation import Continuation, Continued
from cwm.services.turns.exchange import Departure, Exchange, Head, Outgoing
from cwm.services.turns.placement import Said
from cwm.services.turns.turns import Answered, RunningTurn, Turns

_REQUEST_ID: Final = "x-request-id"
_CLIENT_ID_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as received. ``path`` includes the query; header names are in lower case; ``left`` is set when its client leaves.

    ``branch`` is ``new`` for a turn that is no part of its session's conversation; ``continued`` names what to go on
    from, when the messages are only the new ones.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    session_id: str | None = None
    branch: str | None = None
    continued: str | None = None
    left: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """The engine's response. A caller that stops reading ``chunks`` early must set ``left`` of its request.

    ``session_id`` and ``turn_id``: of a turn that is recorded; ``diverged``: where it leaves what was recorded.
    """

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    streamed: bool
    session_id: str | None
    turn: RunningTurn | None
    _exchange: Exchange

    @property
    def turn_id(self) -> str | None:
        return None if self.turn is None else self.turn.id

    @property
    def diverged(self) -> Divergence | None:
        return None if self.turn is None else self.turn.diverged

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that were not computed, once the engine has said so."""
        usage = self._exchange.usage()
        return None if usage is None else usage.cached_tokens

    def chunks(self) -> AsyncIterator[bytes]:
        return self._exchange.chunks()


@dataclass(slots=True)
class PassThrough:
    engine: Engine
    wire: TurnWire
    registry: Registry
    directory: EngineDirectory
    open_session: OpenSession
    scopes: SaltScopes
    turns: Turns
    continuation: Continuation
    journal: Journal
    limits: Limits
    reuse: Reuse
    _running: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def turn(self, principal: Principal, incoming: ClientRequest) -> EngineAnswer:
        """Forward a completion or a chat and return the answer as it arrives, whatever its status.

        With a session id the turn is recorded in that session, which its first turn creates. CWM-1001, 1003,
        3002, 5001, 5002, 6001; 7001, 7002 and 7003 over a limit.
        """
        with ExitStack() as scope:
            request, cost = self._read(incoming)
            scope.callback(await self.limits.admit(principal, incoming.session_id, cost=cost))
            if isinstance(request, CwmError):
                raise request
            await request.require_media()
            await self.limits.require_tokens(principal)
            source = None
            if incoming.continued is not None:
                request.require_continuable()
                source = await self.continuation.source(principal, incoming.continued, incoming.session_id)
                incoming = replace(incoming, session_id=source.session.id)
            if incoming.session_id is None:
                outbound = await self._admit(principal, request)
            else:
                request.require_recordable()
                session_id = await self._session_id(principal, incoming.session_id)
                turn = scope.enter_context(self.turns.begin(principal, session_id))
                outbound = await self._admit_to_session(principal, incoming, request, turn, source)
            return await self._start(incoming, outbound, scope.pop_all(), principal)

    async def relay(self, incoming: ClientRequest) -> EngineAnswer:
        """Forward a request that needs no session and no salt."""
        outbound = _Outbound(self.wire.read(incoming.path, b"{}", {}), incoming.body)
        return await self._start(incoming, outbound, ExitStack())

    async def drain(self, timeout_seconds: float) -> None:
        """Wait for running exchanges; after the timeout cancel them, and they record what they have read."""
        await self._running.stop(timeout_seconds)

    def _read(self, incoming: ClientRequest) -> tuple[TurnRequest | CwmError, int]:
        """The request and what it costs; one that cannot be read counts too, as one."""
        try:
            request = self.wire.read(incoming.path, incoming.body, incoming.headers)
        except CwmError as error:
            return error, 1
        return request, request.sequences

    async def _session_id(self, principal: Principal, session_id: str) -> str:
        try:
            return require_session_id(session_id)
        except CwmError as error:
            await self.journal.injection(principal, "pass_through", error)
            raise

    async def _admit(self, principal: Principal, request: TurnRequest) -> _Outbound:
        identity = await self._served(request.model)
        # vLLM has the best error for a model it does not serve; any salt of the tenant will do for that request.
        identity = identity or await self.directory.identity(None)
        _require_room(request.prompt_tokens, identity)
        scope = await self.scopes.current(principal.tenant, f"tenant:{principal.tenant}")
        salt = self.directory.salt(principal.tenant, scope, identity)
        ids_requested = self._requests_ids(request)
        return _Outbound(
            request,
            request.body(salt, weights=identity.weights_digest, recorded=ids_requested),
            ids_requested=ids_requested,
            abortable=self.directory.survives_aborts(identity),
        )

    async def _admit_to_session(
        self,
        principal: Principal,
        incoming: ClientRequest,
        request: TurnRequest,
        turn: RunningTurn,
        source: Continued | None,
    ) -> _Outbound:
        session_id = incoming.session_id or ""
        session = await self.registry.session(principal.tenant, session_id)
        identity = await self._served(request.model)
        if session is None:
            if identity is None:
                return await self._admit(principal, request)
            session = await self._open(principal, session_id, identity.model)
        session.require_live("a turn")
        if identity is None or identity.model != session.model:
            raise InvalidParameterError(
                f"Session '{session_id}' was begun with the model '{session.model}' and keeps it.",
                field="model",
                session_id=session_id,
                model=session.model,
            )
        messages = await aside(len(incoming.body), request.messages)
        prompt = None
        if source is not None:
            contents = [message.content for message in messages]
            prompt = await self.continuation.prompt(source, contents, request.template_options())
        _require_room(request.prompt_tokens if prompt is None else len(prompt), identity)
        await self._note_special_tokens(principal, session, request)
        apart = _apart(incoming.branch)
        if source is not None:
            said = Said(messages, source.turn.profile, whole=False, apart=apart)
        else:
            said = await self._said(session, messages, request.profile(), apart=apart)
        await turn.ask(session, said)
        salt = self.directory.salt(principal.tenant, session.salt_scope, identity)
        return _Outbound(
            request,
            request.body(salt, weights=identity.weights_digest, recorded=True, prompt=prompt),
            turn,
            ids_requested=True,
            abortable=self.directory.survives_aborts(identity),
            left=incoming.left,
        )

    async def _said(
        self, session: Session, messages: Sequence[Message], profile: Profile, *, apart: bool
    ) -> Said:
        """What a request with the whole conversation says, and where that leaves what was said before.

        CWM-3008 for the first request to a thawed session that has none of the window's messages: it would not see the window.
        """
        current = await self.registry.current_turn(session.tenant, session.id)
        if current is None:
            return Said(messages, profile, apart=apart)
        line = await self.registry.message_digests(current)
        diverged = divergence(messages, profile, line, current.profile) if line else None
        if diverged is not None:
            self.journal.meter.event(f"turn_diverged_{diverged.cause}")
        said = Said(messages, profile, apart=apart, current=current.id, line=line, diverged=diverged)
        if session.state is SessionState.THAWED and not apart:
            self._require_related(session, said, line)
        return said

    def _require_related(self, session: Session, said: Said, line: Sequence[str]) -> None:
        chat = [message for message in said.messages if message.content.get("role") != "prompt"]
        if chat and not said.answers and not any(message.digest in line for message in chat):
            raise UnrelatedTurnError(
                f"Session '{session.id}' was thawed from window '{session.thawed_from}', and the request has none of "
                "its messages: the model would not see the window. Send the whole conversation; or only what is "
                f"new, with the header 'CWM-Continue: session:{session.id}'; or 'CWM-Branch: new' to ask apart from it.",
                session_id=session.id,
                window_name=session.thawed_from,
            )

    def _requests_ids(self, request: TurnRequest) -> bool:
        """Whether to request the token ids of a turn that is not recorded, in order to count its tokens.

        If a client leaves a stream, the ids are the only way to count them.
        """
        if not self.limits.counts_tokens:
            return False
        try:
            request.require_recordable()
        except InvalidParameterError as error:
            if request.streamed:
                raise InvalidParameterError(
                    "Where tokens are budgeted, a stream has one prompt, no 'echo' and no "
                    "'include_reasoning': false; ask without 'stream'.",
                    field="stream",
                ) from error
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
        count = _occurrences(request.texts(), special)
        if not count:
            return
        await self.journal.note(
            principal, "session.special_tokens", "passed", {"count": count}, session_id=session.id
        )

    async def _start(
        self,
        incoming: ClientRequest,
        outbound: _Outbound,
        scope: ExitStack,
        principal: Principal | None = None,
    ) -> EngineAnswer:
        """Run the exchange in a task that the client cannot cancel; ``scope`` closes with the turn."""

        async def settle(head: Head, answer: TurnAnswer) -> None:
            with scope:
                if principal is not None:
                    await self.limits.spend(principal, answer.tokens())
                await self._settle(outbound, head, answer, principal)

        headers, departure = _departure(incoming, outbound)
        exchange = Exchange(
            self.engine,
            Outgoing(incoming.method, incoming.path, outbound.body, headers),
            lambda head: outbound.request.answer(streamed=head.streamed, recorded=outbound.ids_requested),
            settle,
            departure,
        )
        task = self._running.start(self._run(exchange, outbound, incoming.session_id))
        task.add_done_callback(lambda _: scope.close())
        head = await exchange.head()
        return EngineAnswer(
            head.status, head.headers, head.streamed, incoming.session_id, outbound.turn, exchange
        )

    async def _run(self, exchange: Exchange, outbound: _Outbound, session_id: str | None) -> None:
        try:
            with (
                suppress(CwmError),
                _traced(self.journal.tracer, outbound.request, session_id),
                self.journal.meter.operation("pass_through"),
            ):
                await exchange.run()
        finally:
            if outbound.turn is not None:
                await outbound.turn.close()

    async def _settle(
        self, outbound: _Outbound, head: Head, answer: TurnAnswer, principal: Principal | None
    ) -> None:
        if head.status != HTTPStatus.OK:
            return
        usage = answer.usage()
        if usage is not None and principal is not None:
            self.reuse.turn(principal.tenant, usage.prompt_tokens, usage.cached_tokens)
            self.journal.tracer.current().note(
                {
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                }
            )
        if outbound.turn is None:
            return
        token_ids, content = answer.token_ids(), answer.message()
        if token_ids is not None:
            message = None if content is None else message_of(content)
            cached = None if usage is None else usage.cached_tokens
            await outbound.turn.record(
                Answered(token_ids, answer.prompt_tokens(), message, cached, outbound.left.is_set())
            )
        elif answer.begun or not head.streamed:
            await outbound.turn.lost("the engine did not tell the token ids", 0)


@dataclass(frozen=True, slots=True)
class _Outbound:
    """A request as sent to the engine.

    ``turn`` is set if it is recorded; ``ids_requested``: token ids were requested; ``abortable``: the engine survives
    that it is aborted at any moment; ``left`` is set when its client leaves.
    """

    request: TurnRequest
    body: bytes
    turn: RunningTurn | None = None
    ids_requested: bool = False
    abortable: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)


def _departure(incoming: ClientRequest, outbound: _Outbound) -> tuple[Mapping[str, str], Departure]:
    """The headers to send, and how the request ends when its client leaves. A turn whose tokens count is never cut."""
    if not outbound.abortable or outbound.request.operation is None:
        return incoming.headers, Departure(incoming.left)
    cut = not outbound.ids_requested
    if outbound.request.streamed:
        return incoming.headers, Departure(incoming.left, cut=cut)
    # Unique for each request, so that nobody aborts another's by choosing its id.
    client_id = incoming.headers.get(_REQUEST_ID, "")[:_CLIENT_ID_CHARS]
    request_id = f"{client_id}{'-' if client_id else ''}{uuid4().hex}"
    departure = Departure(incoming.left, outbound.request.generation_ids(request_id), cut)
    return {**incoming.headers, _REQUEST_ID: request_id}, departure


def _traced(tracer: Tracer, request: TurnRequest, session_id: str | None) -> AbstractContextManager[Span]:
    """A span by OpenTelemetry's conventions for generative models; ``pass_through`` if nothing is generated."""
    if (operation := request.operation) is None:
        return tracer.span("pass_through")
    ids_requested = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "vllm"}
    if (model := named(request.model)) is not None:
        ids_requested["gen_ai.request.model"] = model
    if (conversation := named(session_id)) is not None:
        ids_requested["gen_ai.conversation.id"] = conversation
    return tracer.span(operation if model is None else f"{operation} {model}", SpanKind.CLIENT, ids_requested)


def _occurrences(texts: Iterable[str], tokens: Collection[str]) -> int:
    """How often the tokens occur. A model may have hundreds, of few beginnings, and most texts have none of those."""
    beginnings = {token[:2] for token in tokens}
    count = 0
    for text in texts:
        present = {beginning for beginning in beginnings if beginning in text}
        if present:
            count += sum(text.count(token) for token in tokens if token[:2] in present)
    return count


def _apart(branch: str | None) -> bool:
    if branch not in {None, "new"}:
        raise InvalidParameterError("The header CWM-Branch has one value: new.", field="CWM-Branch")
    return branch == "new"


def _require_room(count: int | None, identity: EngineIdentity) -> None:
    """Refuse a prompt that does not fit: the engine would shorten the answer silently."""
    if count is not None and count + 1 > identity.max_model_len:
        raise InvalidParameterError(
            f"The prompt has {count} tokens; '{identity.model}' takes {identity.max_model_len}, "
            "at least one of the answer included.",
            field="prompt",
            token_count=count,
            max_model_len=identity.max_model_len,
        )
