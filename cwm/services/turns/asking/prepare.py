"""Prepares what is sent to the engine: the session is entered, an engine chosen, and the turn recorded as asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import InvalidParameterError
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.ports.engine import Engine
from cwm.ports.turn_wire import TurnRequest
from cwm.services.access.limits import Limits
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.placement import Place
from cwm.services.sessions.open_session import OpenSession
from cwm.services.turns.asking.continuation import Continuation
from cwm.services.turns.asking.destination import Destination
from cwm.services.turns.asking.enter_session import EnterSession
from cwm.services.turns.asking.find_session import is_recordable
from cwm.services.turns.asking.outbound import Outbound
from cwm.services.turns.asking.request import ClientRequest
from cwm.services.turns.asking.statement import Statements
from cwm.services.turns.turns import RunningTurn, Turns
from cwm.threads import aside


@dataclass(frozen=True, slots=True)
class Prepare:
    engine: Engine
    directory: EngineDirectory
    place: Place
    open_session: OpenSession
    turns: Turns
    enter: EnterSession
    continuation: Continuation
    statements: Statements
    journal: Journal
    limits: Limits

    async def counted(self, principal: Principal, request: TurnRequest) -> Outbound:
        """A request that generates nothing and uses no KV."""
        engine = self.engine
        if (identity := await self.directory.served(request.model, principal.tenant)) is not None:
            request = request.addressed_to(identity.model, identity.max_model_len)
        elif not self.directory.is_one:
            # The first of all engines may be another tenant's.
            identity = await self.directory.identity(None, tenant=principal.tenant)
        if identity is not None:
            engine = engine.on(identity.engine)
        return Outbound(request, request.body("", weights="", recorded=False), engine)

    async def __call__(
        self,
        principal: Principal,
        incoming: ClientRequest,
        request: TurnRequest,
        destination: Destination,
        scope: ExitStack,
    ) -> Outbound:
        """The request as it is sent, in a turn of its session if it has one. What it begins ends with ``scope``."""
        if destination.session_id is None:
            return await self._without_session(principal, request, scope)
        request.require_recordable()
        with ExitStack() as work:
            turn = work.enter_context(self.turns.begin(principal, destination.session_id))
            outbound = await self._in_session(principal, incoming, request, destination, turn, work)
            scope.push(work.pop_all())
        return outbound

    async def _without_session(self, principal: Principal, request: TurnRequest, work: ExitStack) -> Outbound:
        identity = await self.directory.served(request.model, principal.tenant)
        if identity is None:
            # vLLM has the best error for a model it does not serve; any salt of the tenant will do for that request.
            identity = await self.directory.identity(None, tenant=principal.tenant)
        else:
            identity = await self.place.anywhere(identity.model, principal.tenant, work)
            request = request.addressed_to(identity.model, identity.max_model_len)
        _require_room(request.prompt_tokens, identity)
        scope = await self.open_session.scope_of_none(principal)
        salt = self.directory.salt(principal.tenant, scope, identity)
        counted = self._counts(request)
        ids_requested = counted or await self._may_go_on(principal, request, identity)
        return Outbound(
            request,
            request.body(salt, weights=identity.expected, recorded=ids_requested),
            self.engine.on(identity.engine),
            identity,
            ids_requested=ids_requested,
            counted=counted,
            abortable=self.directory.survives_aborts(identity),
        )

    async def _in_session(
        self,
        principal: Principal,
        incoming: ClientRequest,
        request: TurnRequest,
        destination: Destination,
        turn: RunningTurn,
        work: ExitStack,
    ) -> Outbound:
        session = await self.enter.existing(principal, destination)
        identity = await self.directory.served(request.model, principal.tenant)
        if session is None:
            if identity is None:
                return await self._without_session(principal, request, work)
            await turn.require_storage(principal.subject)
            session = await self.enter.opened(principal, destination, identity.model, incoming.visibility)
        session.require_live("a turn")
        _require_model(session, identity)
        identity = await self.place(session, work)
        request = request.addressed_to(identity.model, identity.max_model_len)
        prompt = await self._prompt(request, destination, session, identity)
        _require_room(request.prompt_tokens if prompt is None else len(prompt), identity)
        await self._note_special_tokens(principal, session, incoming, request, identity.engine)
        statement = await self.statements.of(destination, session, request.profile(), turn)
        if session.owner != principal.subject:
            await self.journal.shared(principal, "session", session_id=session.id, owner=session.owner)
        salt = self.directory.salt(principal.tenant, session.salt_scope, identity)
        await turn.ask(
            session, statement, cache_salt=salt, block=identity.reused_block, number=destination.number
        )
        return Outbound(
            request,
            request.body(salt, weights=identity.expected, recorded=True, prompt=prompt),
            self.engine.on(identity.engine),
            identity,
            session,
            turn,
            ids_requested=True,
            counted=True,
            abortable=self.directory.survives_aborts(identity),
            left=incoming.left,
        )

    async def _prompt(
        self, request: TurnRequest, destination: Destination, session: Session, identity: EngineIdentity
    ) -> TokenIds | None:
        """The whole prompt of a request with only new messages; else the engine renders it."""
        if destination.source is None:
            return None
        contents = [message.content for message in destination.messages]
        options = request.template_options()
        return await self.continuation.prompt(session, destination.source, contents, options, identity.engine)

    async def _may_go_on(self, principal: Principal, request: TurnRequest, identity: EngineIdentity) -> bool:
        """Whether to request the token ids of a stream that is not recorded, so that another engine can go on with it."""
        directory = self.directory
        if directory.is_one or directory.is_router(identity.engine):
            return False
        if not request.resumable or not is_recordable(request):
            return False
        return len(await directory.candidates(identity.model, principal.tenant)) > 1

    def _counts(self, request: TurnRequest) -> bool:
        """Whether to request the token ids of a turn that is not recorded, in order to count its tokens.

        If a client leaves a stream, the ids are the only way to count them.
        """
        if not self.limits.counts_tokens:
            return False
        if not is_recordable(request):
            if request.streamed:
                raise InvalidParameterError(
                    "Where tokens are budgeted, a stream has one prompt, no 'echo' and no "
                    "'include_reasoning': false; ask without 'stream'.",
                    field="stream",
                )
            return False
        return True

    async def _note_special_tokens(
        self,
        principal: Principal,
        session: Session,
        incoming: ClientRequest,
        request: TurnRequest,
        engine: str,
    ) -> None:
        """Audit a prompt that contains control tokens: its text may imitate another role."""
        special = await self.engine.on(engine).special_tokens(session.model)
        count = await aside(len(incoming.body), lambda: _occurrences(request.texts(), special))
        if not count:
            return
        await self.journal.note(
            principal, "session.special_tokens", "passed", {"count": count}, session_id=session.id
        )


def _occurrences(texts: Iterable[str], tokens: Collection[str]) -> int:
    """How often the tokens occur. A model may have hundreds, of few beginnings, and most texts have none of those."""
    beginnings = {token[:2] for token in tokens}
    count = 0
    for text in texts:
        present = {beginning for beginning in beginnings if beginning in text}
        if present:
            count += sum(text.count(token) for token in tokens if token[:2] in present)
    return count


def _require_model(session: Session, identity: EngineIdentity | None) -> None:
    if identity is None or identity.model != session.model:
        raise InvalidParameterError(
            f"Session '{session.id}' was begun with the model '{session.model}' and keeps it.",
            field="model",
            session_id=session.id,
            model=session.model,
        )


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
