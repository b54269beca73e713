"""Admission: what a client's request becomes before it is sent: its session, its salt, its place in the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from cwm.domain.conversation import (
    Capture,
    ClientConversation,
    asks_for_summary,
    cache_key_of,
    chained,
    is_for,
)
from cwm.domain.divergence import Divergence, Habit, divergence
from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import (
    CwmError,
    InvalidParameterError,
    ModelDoesNotGenerateError,
    SessionAlreadyExistsError,
    SessionNotFoundError,
    StorageCorruptionError,
    UnrelatedTurnError,
)
from cwm.domain.habits import habit
from cwm.domain.names import require_session_id
from cwm.domain.principal import Principal
from cwm.domain.session import LIVE, Session, SessionState
from cwm.domain.turn import Message, Profile
from cwm.domain.visibility import Right
from cwm.ports.clock import Clock
from cwm.ports.engine import Engine
from cwm.ports.registry import Registry
from cwm.ports.turn_wire import TurnRequest
from cwm.services.access.limits import Limits
from cwm.services.access.sight import session_of
from cwm.services.aside import aside_of
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.placement import Place
from cwm.services.sessions.open_session import OpenSession, salt_scope_of
from cwm.services.sessions.salt_scopes import SaltScopes
from cwm.services.turns.continuation import Continuation, Continued
from cwm.services.turns.conversations import Captured, Conversations, chains_of
from cwm.services.turns.placement import Said
from cwm.services.turns.turns import RunningTurn
from cwm.threads import aside


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as received. ``path`` includes the query; header names are in lower case; ``left`` is set when its client leaves.

    ``branch`` is ``new`` for a turn that is no part of its session's conversation; ``continued`` names what to go on
    from, when the messages are only the new ones. ``conversation`` is what the client calls its conversation; a request
    that is not ``captured`` belongs to no session unless it has a ``session_id``. ``again``: its client sends it once more.
    ``visibility`` is that of the session, if this request opens it. ``follows`` is the session of the response or conversation that it goes on from.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    session_id: str | None = None
    branch: str | None = None
    continued: str | None = None
    conversation: ClientConversation | None = None
    captured: bool = True
    again: bool = False
    visibility: str | None = None
    follows: str | None = None
    left: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Outbound:
    """A request as sent to the engine.

    ``engine`` is the one that is asked, ``identity`` what is known of it, ``session`` the one that it serves; ``turn`` is set if it is
    recorded; ``ids_requested``: token ids were requested; ``counted``: for its tokens to be recorded or budgeted;
    ``abortable``: the engine survives that it is aborted at any moment; ``left`` is set when its client leaves.
    """

    request: TurnRequest
    body: bytes
    engine: Engine
    identity: EngineIdentity | None = None
    session: Session | None = None
    turn: RunningTurn | None = None
    ids_requested: bool = False
    counted: bool = False
    abortable: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Admission:
    engine: Engine
    registry: Registry
    directory: EngineDirectory
    place: Place
    open_session: OpenSession
    scopes: SaltScopes
    continuation: Continuation
    conversations: Conversations
    journal: Journal
    limits: Limits
    clock: Clock

    async def session_id(self, principal: Principal, session_id: str) -> str:
        try:
            return require_session_id(session_id)
        except CwmError as error:
            await self.journal.injection(principal, "pass_through", error)
            raise

    async def captured(
        self, principal: Principal, incoming: ClientRequest, request: TurnRequest
    ) -> Captured | None:
        """The session of a request without a session id of its own, by what its client calls the conversation, else by what it says."""
        policies, conversation = self.conversations.policies, incoming.conversation
        fixed = policies.fixed(incoming.session_id, conversation) if request.operation == "chat" else None
        if fixed is not None:
            conversation = None
        elif incoming.session_id is not None:
            return None
        captures = self._captures(principal, incoming, request)
        identity = await self._served(principal.tenant, request.model) if captures else None
        if identity is None or not self._recordable(request):
            return None
        messages = await aside(len(incoming.body), request.messages)
        if conversation is not None:
            return await self.conversations.named(principal, conversation, identity.model, messages)
        if incoming.follows is not None:
            session = await self.registry.session(principal.tenant, incoming.follows)
            if session is not None and session.model == identity.model:
                return Captured(session.id, {}, (await chains_of(messages))[-1])
        if (ask := request.response) is not None and ask.conversation is not None:
            return await self.conversations.named(
                principal, ClientConversation(ask.conversation), identity.model
            )
        key = (
            await aside(len(incoming.body), partial(cache_key_of, incoming.body))
            if policies.by_cache_key
            else None
        )
        return await self.conversations.by_content(
            principal, messages, identity.model, again=incoming.again, fixed=fixed, cache_key=key
        )

    async def counted(self, principal: Principal, request: TurnRequest) -> Outbound:
        """A request that generates nothing and uses no KV."""
        engine = self.engine
        if (identity := await self._served(principal.tenant, request.model)) is not None:
            request = request.addressed_to(identity.model, identity.max_model_len)
        elif not self.directory.is_one:
            # The first of all engines may be another tenant's.
            identity = await self.directory.identity(None, tenant=principal.tenant)
        if identity is not None:
            engine = engine.on(identity.engine)
        return Outbound(request, request.body("", weights="", recorded=False), engine)

    def _captures(self, principal: Principal, incoming: ClientRequest, request: TurnRequest) -> bool:
        """Whether to look for the session. A client that may read its response again names its conversation by that."""
        policy, ask = self.conversations.policy(principal), request.response
        if policy is Capture.OFF or not incoming.captured:
            return False
        if ask is not None and not ask.stored and self.conversations.policies.unstored is Capture.OFF:
            return False
        names = (incoming.session_id, incoming.conversation, incoming.follows)
        is_named = any(names) or (ask is not None and (ask.stored or ask.conversation is not None))
        return bool(is_named) or (policy is Capture.ALL and request.operation == "chat")

    async def without_session(self, principal: Principal, request: TurnRequest, work: ExitStack) -> Outbound:
        identity = await self._served(principal.tenant, request.model)
        if identity is None:
            # vLLM has the best error for a model it does not serve; any salt of the tenant will do for that request.
            identity = await self.directory.identity(None, tenant=principal.tenant)
        else:
            identity = await self.place.anywhere(identity.model, principal.tenant, work)
            request = request.addressed_to(identity.model, identity.max_model_len)
        _require_room(request.prompt_tokens, identity)
        base = salt_scope_of(self.open_session.cache_scope, principal, None)
        scope = await self.scopes.current(principal.tenant, base)
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

    async def to_session(
        self,
        principal: Principal,
        incoming: ClientRequest,
        request: TurnRequest,
        turn: RunningTurn,
        source: Continued | None,
        capture: Captured | None,
        work: ExitStack,
    ) -> Outbound:
        session_id = incoming.session_id or ""
        session = await self._session(principal, session_id)
        identity = await self._served(principal.tenant, request.model)
        if session is None:
            if identity is None:
                return await self.without_session(principal, request, work)
            await turn.require_storage(principal.subject)
            session = await self._open(principal, incoming, identity.model, capture)
        if capture is not None:
            session = await self._revived(principal, session)
        session.require_live("a turn")
        if identity is None or identity.model != session.model:
            raise InvalidParameterError(
                f"Session '{session_id}' was begun with the model '{session.model}' and keeps it.",
                field="model",
                session_id=session_id,
                model=session.model,
            )
        identity = await self.place(session, work)
        request = request.addressed_to(identity.model, identity.max_model_len)
        messages = await aside(len(incoming.body), request.messages)
        prompt = None
        if source is not None:
            contents = [message.content for message in messages]
            prompt = await self.continuation.prompt(
                source, contents, request.template_options(), identity.engine
            )
        _require_room(request.prompt_tokens if prompt is None else len(prompt), identity)
        await self._note_special_tokens(principal, session, incoming, request, identity.engine)
        conversation = incoming.conversation
        apart = _apart(incoming.branch) or (
            conversation is not None and (conversation.aside or asks_for_summary(messages))
        )
        if source is not None:
            statement = Said(
                messages, source.turn.profile, whole=False, apart=apart, chain=_after(source, messages)
            )
        else:
            statement = await self._said(
                session, turn, messages, request.profile(), apart=apart, capture=capture
            )
            if conversation is not None and is_for(session_id, conversation.session_id):
                statement = replace(statement, compactions=conversation.compactions)
        if session.owner != principal.subject:
            await self.journal.shared(principal, "session", session_id=session.id, owner=session.owner)
        salt = self.directory.salt(principal.tenant, session.salt_scope, identity)
        await turn.ask(session, statement, cache_salt=salt, block=identity.reused_block)
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

    async def successor(
        self, principal: Principal, outbound: Outbound, lost_engines: Sequence[str]
    ) -> EngineIdentity | None:
        """An engine that does what ``lost_engines`` would have done, and serves the session from now on; None if there is no equal one."""
        identity, session, directory = outbound.identity, outbound.session, self.directory
        if identity is None or directory.is_one or directory.is_router(lost_engines[-1]):
            return None
        directory.lose(lost_engines[-1])
        drained = await self.registry.drained_engines()
        names = await directory.candidates(identity.model, principal.tenant)
        for name in sorted(names, key=lambda name: (name in drained, directory.is_full(name))):
            if name in lost_engines or directory.is_router(name) or not await directory.answers(name):
                continue
            with suppress(CwmError):
                other = await directory.identity(identity.model, name)
                if other == identity:
                    if session is not None:
                        await self.registry.settle_session(session, name, lost_engines[-1])
                    return other
        return None

    async def _said(
        self,
        session: Session,
        turn: RunningTurn,
        messages: Sequence[Message],
        profile: Profile,
        *,
        apart: bool,
        capture: Captured | None,
    ) -> Said:
        """What a request with the whole conversation says, and where that leaves what was said before.

        CWM-3008 for the first request to a thawed session that has none of the window's messages: it would not see the window. If
        its client did not choose the session, it is a side branch instead, as a title is.
        """
        chain = None if capture is None else capture.chain
        current = await self.registry.current_turn(session.tenant, session.id)
        if current is None:
            return Said(messages, profile, apart=apart, chain=chain)
        line = await turn.line(current)
        diverged = divergence(messages, profile, line, current.profile) if line else None
        if diverged is not None:
            self.journal.meter.event(f"turn_diverged_{diverged.cause}")
            diverged = replace(diverged, habit=await self._habit(session, messages, diverged))
            if diverged.habit is not None:
                self.journal.meter.event(f"turn_habit_{diverged.habit}")
        statement = Said(
            messages, profile, apart=apart, current=current.id, line=line, diverged=diverged, chain=chain
        )
        if session.state is SessionState.THAWED and not apart and _unrelated(statement):
            if capture is not None:
                return replace(statement, apart=True)
            raise UnrelatedTurnError(
                f"Session '{session.id}' was thawed from window '{session.thawed_from}', and the request has none of "
                "its messages: the model would not see the window. Send the whole conversation; or only what is "
                f"new, with the header 'CWM-Continue: session:{session.id}'; or 'CWM-Branch: new' to ask apart from it.",
                session_id=session.id,
                window_name=session.thawed_from,
            )
        return statement

    async def _habit(
        self, session: Session, messages: Sequence[Message], diverged: Divergence
    ) -> Habit | None:
        """The client's habit by which a request leaves what was said. It is in the texts, where they are kept."""
        if diverged.old is None or diverged.new is None:
            return habit(diverged.cause, None, None)
        old: Sequence[Message] = ()
        with suppress(StorageCorruptionError):
            old = await self.registry.messages_with(session.tenant, session.id, [diverged.old])
        before, now = old[0].content if old else None, messages[diverged.message].content
        return await aside_of((before, now), lambda: habit(diverged.cause, before, now))

    async def _revived(self, principal: Principal, session: Session) -> Session:
        """A client that goes on with its own conversation knows nothing of states."""
        if session.owner != principal.subject:
            raise SessionAlreadyExistsError(
                f"There is a session '{session.id}' already.", session_id=session.id
            )
        if session.state in LIVE:
            return session
        async with self.journal.entry(principal, "session_unfreeze", session_id=session.id):
            return await self.registry.unfreeze(session, self.clock.now()) or session

    def _recordable(self, request: TurnRequest) -> bool:
        with suppress(InvalidParameterError):
            request.require_recordable()
            return True
        return False

    async def _may_go_on(self, principal: Principal, request: TurnRequest, identity: EngineIdentity) -> bool:
        """Whether to request the token ids of a stream that is not recorded, so that another engine can go on with it."""
        directory = self.directory
        if directory.is_one or directory.is_router(identity.engine):
            return False
        if not request.resumable or not self._recordable(request):
            return False
        return len(await directory.candidates(identity.model, principal.tenant)) > 1

    def _counts(self, request: TurnRequest) -> bool:
        """Whether to request the token ids of a turn that is not recorded, in order to count its tokens.

        If a client leaves a stream, the ids are the only way to count them.
        """
        if not self.limits.counts_tokens:
            return False
        if not self._recordable(request):
            if request.streamed:
                raise InvalidParameterError(
                    "Where tokens are budgeted, a stream has one prompt, no 'echo' and no "
                    "'include_reasoning': false; ask without 'stream'.",
                    field="stream",
                )
            return False
        return True

    async def _served(self, tenant: str, model: str | None) -> EngineIdentity | None:
        try:
            return await self.directory.asked_for(model, tenant)
        except ModelDoesNotGenerateError:
            raise
        except InvalidParameterError:
            return None

    async def _session(self, principal: Principal, session_id: str) -> Session | None:
        with suppress(SessionNotFoundError):
            return await session_of(self.registry, principal, session_id, Right.USE)
        return None

    async def _open(
        self, principal: Principal, incoming: ClientRequest, model: str, capture: Captured | None
    ) -> Session:
        """The new session, or the one that another request just opened. CWM-3001 if the id is somebody else's."""
        session_id = incoming.session_id or ""
        try:
            metadata, origin = (None, None) if capture is None else (capture.metadata, capture.origin)
            return await self.open_session(
                principal, session_id, model, metadata, incoming.visibility, origin, listed=False
            )
        except SessionAlreadyExistsError:
            session = await self._session(principal, session_id)
            if session is None:
                raise
            return session

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


def _unrelated(statement: Said) -> bool:
    """Whether a chat has no answer of an assistant and none of the messages of the line."""
    chat = [message for message in statement.messages if message.content.get("role") != "prompt"]
    return (
        bool(chat) and not statement.answers and not any(message.digest in statement.line for message in chat)
    )


def _after(source: Continued, messages: Sequence[Message]) -> str | None:
    chain = None if source.turn.abandoned else source.turn.chain
    return None if chain is None else chained(chain, *(message.digest for message in messages))


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
