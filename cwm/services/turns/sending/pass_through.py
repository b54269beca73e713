"""Pass-through: forward the engine's own API under the tenant's salt, and record sessions token for token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Final
from uuid import uuid4

from cwm.background import BackgroundTasks
from cwm.domain.changes import SESSIONS_URI
from cwm.domain.divergence import Cause, Divergence
from cwm.domain.errors import (
    CwmError,
    EngineTimeoutError,
    SessionAlreadyExistsError,
    SessionMovedOnError,
)
from cwm.domain.habits import RepairPolicies
from cwm.domain.messages import message_of
from cwm.domain.model_aliases import ModelAliases
from cwm.domain.principal import Principal
from cwm.domain.response import ResponseAsk
from cwm.domain.session import Session
from cwm.ports.engine import Engine
from cwm.ports.tracing import Span, SpanKind, Tracer, named
from cwm.ports.turn_wire import PromptUsage, TurnAnswer, TurnRequest, TurnWire
from cwm.services.access.limits import Limits
from cwm.services.aside import held_until
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.placement import Place
from cwm.services.kv.reuse import Reuse
from cwm.services.responses.responses import Responses
from cwm.services.turns.asking.outbound import Outbound
from cwm.services.turns.asking.prepare import Prepare
from cwm.services.turns.finding.destination import Destination
from cwm.services.turns.finding.find_session import FindSession
from cwm.services.turns.finding.request import ClientRequest
from cwm.services.turns.recording.turns import Answered, RunningTurn, Turns
from cwm.services.turns.sending.exchange import Departure, Exchange, Head, Outgoing
from cwm.services.turns.sending.takeover import Takeover
from cwm.threads import aside

_REQUEST_ID: Final = "x-request-id"
_CLIENT_ID_CHARS: Final = 64
_ANSWER_SECONDS: Final = 5.0
"""For a whole answer of one of several engines that are all asked."""
_MOST_SEARCHES: Final = 64
"""For the session of a request, while others go on from where it would."""
_MOST_ENGINES: Final = 2
"""That an answer may have lost until it is given up."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """The engine's response. A caller that stops reading ``chunks`` early must set ``left`` of its request.

    ``session_id`` and ``turn_id``: of a turn that is recorded; ``diverged``: where it leaves what was recorded.
    ``capped``: how many tokens the answer may have, where the client allowed more than the model takes. ``repairs``
    changed the request, from which the fields in ``dropped`` were left out. ``prompt_only``: the engine does not tell the ids of its answer, so the turn has those of its prompt alone.
    """

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    streamed: bool
    session_id: str | None
    turn: RunningTurn | None
    capped: int | None
    repairs: Sequence[str]
    dropped: Sequence[str]
    prompt_only: bool
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
    find_session: FindSession
    prepare: Prepare
    takeover: Takeover
    directory: EngineDirectory
    turns: Turns
    journal: Journal
    limits: Limits
    reuse: Reuse
    responses: Responses
    repairs: RepairPolicies = field(default_factory=RepairPolicies)
    _running: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def turn(self, principal: Principal, incoming: ClientRequest) -> EngineAnswer:
        """Forward a completion or a chat and return the answer as it arrives, whatever its status.

        With a session id the turn is recorded in that session, which its first turn creates. CWM-1001, 1003,
        3002, 5001, 5002, 6001; 7001, 7002 and 7003 over a limit. It was counted as one request before it was read.
        """
        with ExitStack() as scope:
            request = await self.read(principal, incoming)
            scope.callback(await self.limits.admit_rest(principal, incoming.session_id, request.sequences))
            if (ask := request.response) is not None:
                scope.callback(self.let_go, principal, ask)
            request, follows = await self.responses.resolved(principal, request)
            await request.require_media(principal)
            await self.limits.require_tokens(principal)
            destination, outbound = await self._asked(principal, incoming, request, follows, scope)
            return await self._start(incoming, outbound, scope.pop_all(), principal, destination.session_id)

    async def _asked(
        self,
        principal: Principal,
        incoming: ClientRequest,
        request: TurnRequest,
        follows: str | None,
        scope: ExitStack,
    ) -> tuple[Destination, Outbound]:
        """The request's destination, and what is sent. Where somebody else was faster, both are found anew."""
        searches = 0
        while True:
            destination = await self.find_session(principal, incoming, request, follows)
            searches += 1
            if searches == _MOST_SEARCHES:
                destination = replace(destination, number=None)
            try:
                return destination, await self.prepare(principal, incoming, request, destination, scope)
            except (SessionAlreadyExistsError, SessionMovedOnError):
                if not destination.is_captured or searches == _MOST_SEARCHES:
                    raise

    async def count(self, principal: Principal, incoming: ClientRequest) -> EngineAnswer:
        """Forward a request that counts a prompt's tokens. It costs no tokens. CWM-1003, 5001, 5002; 7001 and 7002 over a limit."""
        with ExitStack() as scope:
            request = await self.read(principal, incoming)
            scope.callback(await self.limits.admit_rest(principal, None, request.sequences))
            await request.require_media(principal)
            outbound = await self.prepare.without_session.counted(principal, request)
            return await self._start(incoming, outbound, scope.pop_all())

    async def relay(self, incoming: ClientRequest, engine: str = "") -> EngineAnswer:
        """Forward a request that needs no session and no salt, to the first engine unless one is named."""
        outbound = Outbound(self.wire.read(incoming.path, b"{}", {}), incoming.body, self.engine.on(engine))
        return await self._start(incoming, outbound, ExitStack())

    async def relay_to_all(
        self, principal: Principal, incoming: ClientRequest
    ) -> list[tuple[EngineAnswer, bytes]]:
        """Forward such a request to every engine that serves the caller's tenant: the whole answers of those that answer, of several engines in time. The first engine's error if none does."""
        names = self.directory.names(principal.tenant)

        async def whole(name: str) -> tuple[EngineAnswer, bytes]:
            request = replace(incoming, left=asyncio.Event())
            try:
                async with asyncio.timeout(_ANSWER_SECONDS if len(names) > 1 else None):
                    answer = await self.relay(request, name)
                    return answer, b"".join([chunk async for chunk in answer.chunks()])
            except TimeoutError:
                raise EngineTimeoutError("An engine does not answer in time.") from None
            finally:
                request.left.set()

        answers = await asyncio.gather(*(whole(name) for name in names), return_exceptions=True)
        responses = [answer for answer in answers if not isinstance(answer, BaseException)]
        for answer in answers:
            if isinstance(answer, BaseException) and (not responses or not isinstance(answer, CwmError)):
                raise answer
        return responses

    @property
    def conversation_headers(self) -> Sequence[str]:
        """Headers of the configuration by which clients name their conversations."""
        return self.find_session.captured.rules.policies.headers

    @property
    def place(self) -> Place:
        return self.prepare.in_session.place

    @property
    def aliases(self) -> ModelAliases:
        return self.directory.aliases

    async def drain(self, timeout_seconds: float) -> None:
        """Wait for running exchanges; after the timeout cancel them, and they record what they have read."""
        await self._running.stop(timeout_seconds)

    async def read(self, principal: Principal, incoming: ClientRequest) -> TurnRequest:
        """The request with its client's repairs."""
        repairs = self.repairs.of(principal.tenant, incoming.headers.get("user-agent", ""))

        def read() -> TurnRequest:
            request = self.wire.read(incoming.path, incoming.body, incoming.headers)
            return request.repaired(repairs) if repairs else request

        return await aside(len(incoming.body), read)

    async def _start(
        self,
        incoming: ClientRequest,
        outbound: Outbound,
        scope: ExitStack,
        principal: Principal | None = None,
        session_id: str | None = None,
    ) -> EngineAnswer:
        """Run the exchange in a task that the client cannot cancel; ``scope`` closes with the turn."""

        # Not bound to the exchange that calls it: together they would keep a large request until garbage is collected.
        async def settle(exchange: Exchange, head: Head, answer: TurnAnswer) -> None:
            with scope:
                if principal is not None:
                    await self.limits.spend(principal, answer.tokens())
                final_outbound = replace(outbound, engine=exchange.engine)
                await self._settle(incoming, final_outbound, head, answer, principal, exchange.first_token_ms)

        session = None
        if principal is not None and outbound.turn is not None:
            session = (principal.tenant, session_id or "")
        headers, departure = _departure(incoming, outbound)
        exchange = Exchange(
            outbound.engine,
            Outgoing(incoming.method, incoming.path, outbound.body, headers, session),
            lambda head: outbound.request.answer(
                status=head.status,
                streamed=head.streamed,
                recorded=outbound.ids_requested,
                session="/".join(session or ()),
            ),
            settle,
            departure,
            None
            if principal is None or outbound.identity is None
            else partial(self._successor, principal, outbound, [outbound.identity.engine], scope),
            lambda answer: outbound.request.resumed(answer, outbound.body),
        )
        task = self._running.start(self._run(exchange, outbound, session_id))
        task.add_done_callback(lambda _: scope.close())
        held_until(task)
        head = await exchange.head()
        return EngineAnswer(
            head.status,
            head.headers,
            head.streamed,
            session_id,
            outbound.turn,
            outbound.request.capped,
            outbound.request.repairs,
            outbound.request.dropped,
            outbound.turn is not None and _hides_ids(outbound, head),
            exchange,
        )

    async def _successor(
        self, principal: Principal, outbound: Outbound, lost_engines: list[str], scope: ExitStack
    ) -> Engine | None:
        """An engine in place of those that are gone. It counts as its work until ``scope`` is closed."""
        if len(lost_engines) >= _MOST_ENGINES:
            # What kills one engine after another may be the request.
            return None
        identity = await self.takeover(principal, outbound, lost_engines)
        if identity is None:
            return None
        lost_engines.append(identity.engine)
        scope.enter_context(self.directory.works(identity.engine))
        self.journal.meter.event("answer_gone_on")
        return self.engine.on(identity.engine)

    async def _run(self, exchange: Exchange, outbound: Outbound, session_id: str | None) -> None:
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
        self,
        incoming: ClientRequest,
        outbound: Outbound,
        head: Head,
        answer: TurnAnswer,
        principal: Principal | None,
        first_token_ms: int | None,
    ) -> None:
        if head.status != HTTPStatus.OK:
            return
        usage = self._note_usage(answer, principal, first_token_ms)
        if outbound.turn is None:
            if incoming.captured:
                await self._keep(outbound, answer, principal, None)
            return
        token_ids, content, prompt_tokens = answer.token_ids(), answer.message(), answer.prompt_tokens()
        ended = answer.begun or not head.streamed
        if token_ids is None and ended and _hides_ids(outbound, head):
            with suppress(CwmError):
                token_ids = await outbound.engine.rendered(incoming.path.partition("?")[0], outbound.body)
                prompt_tokens = len(token_ids)
                await outbound.turn.only_asked(prompt_tokens)
        if token_ids is not None:
            message = None if content is None else message_of(content)
            cached = None if usage is None else usage.cached_tokens
            was_abandoned = outbound.left.is_set()
            session = await outbound.turn.record(
                Answered(
                    token_ids, prompt_tokens, message, cached, was_abandoned, first_token_ms, head.decision
                )
            )
            await self._keep(outbound, answer, principal, outbound.turn)
            await self._note_turn(outbound.turn, session)
        elif ended:
            await outbound.turn.lost("the engine did not tell the token ids", 0)
            await self._keep(outbound, answer, principal, None)

    async def _note_turn(self, turn: RunningTurn, session: Session | None) -> None:
        """Count what a recorded turn tells of its cache, and tell of a session that is listed from now on."""
        if turn.rewritten:
            self.journal.meter.event(f"turn_diverged_{Cause.TEMPLATE}")
        if turn.missed is not None:
            self.journal.meter.event(f"turn_missed_{turn.missed}")
        if session is not None and session.revision == 1:
            await self.journal.changed(session.tenant, SESSIONS_URI)
        if turn.compacts:
            # Beside the answer, which does not wait for it.
            self._running.start(turn.tag_compacted())

    def _note_usage(
        self, answer: TurnAnswer, principal: Principal | None, first_token_ms: int | None
    ) -> PromptUsage | None:
        usage = answer.usage()
        if answer.odd:
            self.journal.meter.event("engine_figure_unknown")
        if usage is not None and principal is not None:
            self.reuse.turn(principal.tenant, usage.prompt_tokens, usage.cached_tokens, first_token_ms)
            self.journal.tracer.current().note(
                {
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                }
            )
        return usage

    async def _keep(
        self, outbound: Outbound, answer: TurnAnswer, principal: Principal | None, turn: RunningTurn | None
    ) -> None:
        """Keep a response with the turn that recorded it, where what was said is kept, and add it to its conversation."""
        ask, content = outbound.request.response, outbound.request.response_of(answer)
        if principal is None or ask is None or content is None:
            return
        if self.turns.keep.of(principal.tenant).messages:
            place = (None, None) if turn is None else (turn.session_id, turn.id)
            await self.responses.keep(principal, ask, content, *place)

    def let_go(self, principal: Principal, ask: ResponseAsk) -> None:
        """Of a conversation to which nothing was added."""
        conversations = self.responses.conversations
        if ask.conversation is not None and conversations.holds(ask.id):
            self._running.start(conversations.let_go(principal, ask.conversation, ask.id))


def _hides_ids(outbound: Outbound, head: Head) -> bool:
    """Whether the engine answers without what makes it tell ids: it then does not repeat the headers that ask for them."""
    names = outbound.request.engine_headers(recorded=outbound.ids_requested)
    present = {name.lower() for name, _ in head.headers}
    return head.status == HTTPStatus.OK and any(name.encode() not in present for name in names)


def _departure(incoming: ClientRequest, outbound: Outbound) -> tuple[Mapping[str, str], Departure]:
    """The headers to send, and how the request ends when its client leaves. A turn whose tokens count is never cut."""
    headers = {**incoming.headers, **outbound.request.engine_headers(recorded=outbound.ids_requested)}
    if not outbound.abortable or outbound.request.operation is None:
        return headers, Departure(incoming.left)
    cut = not outbound.counted
    if outbound.request.streamed:
        return headers, Departure(incoming.left, cut=cut)
    # Unique for each request, so that nobody aborts another's by choosing its id.
    client_id = incoming.headers.get(_REQUEST_ID, "")[:_CLIENT_ID_CHARS]
    request_id = f"{client_id}{'-' if client_id else ''}{uuid4().hex}"
    departure = Departure(incoming.left, outbound.request.generation_ids(request_id), cut)
    return {**headers, _REQUEST_ID: request_id}, departure


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
