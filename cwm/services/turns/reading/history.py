"""History: the turns of a session or window, and what was said in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from cwm.domain.clients.habit import Habit
from cwm.domain.divergence import words_around
from cwm.domain.errors import InvalidParameterError, StorageCorruptionError, TurnNotFoundError
from cwm.domain.habits import habit
from cwm.domain.messages import Brief, plain_text
from cwm.domain.names import require_session_id, require_window_name
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.turn import Message, Turn, TurnQuery, TurnSource, TurnState, TurnTag
from cwm.domain.visibility import Owned, Right, has_everywhere, may
from cwm.domain.window import Window
from cwm.ports.registry import Registry
from cwm.services.access.sight import session_of, turn_of, window_of
from cwm.services.aside import aside_of
from cwm.services.audit.journal import Journal

MAX_TURNS: Final = 200
_Contents: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TurnLog:
    """One page of turns, the newest first, and the newest tags of the session's turns.

    ``current_turn``: the one whose context the session or window is. ``words``: by the ids of turns whose request left what was recorded, what was said there
    and what the request says; ``habits``: the client's habits by which they left it. ``origin``: the turn of another session that this one begins with, by a branch or a thaw.
    ``asked``, on request: by turn id in brief what was asked.
    """

    session_id: str
    current_turn: str | None
    turns: Sequence[Turn]
    has_more: bool
    tags: Sequence[TurnTag]
    words: Mapping[str, tuple[str, str]]
    habits: Mapping[str, Habit] = field(default_factory=dict)
    origin: str | None = None
    asked: Mapping[str, Brief] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Latest:
    """The turn that a session is at, and in brief what was asked in it."""

    turn: Turn
    asked: Brief


@dataclass(frozen=True, slots=True)
class Transcript:
    """A turn and the messages of its context, oldest first.

    None where they were not recorded; those that are not kept have no content. ``token_ids`` on request. ``habit``: the client's by which
    the turn's request left what was recorded. ``first``: the position of the first of them in the context, which has ``total``.
    """

    turn: Turn
    messages: Sequence[Message]
    token_ids: TokenIds | None = None
    habit: Habit | None = None
    first: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """The exact token ids of a context, the digests of its messages and its turn where they were recorded, and the session it is of."""

    session: Session
    token_ids: TokenIds
    digests: Sequence[str]
    turn: Turn | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What is read of another's is audited."""

    registry: Registry
    journal: Journal

    async def log(
        self,
        principal: Principal,
        of: TurnSource,
        limit: int = 50,
        before: int | None = None,
        *,
        asked: bool = False,
    ) -> TurnLog:
        """Turns of a session, or of the session that a window was frozen from, before the turn with number ``before``.

        Who sees the window and not its session gets the turns that the window came from. CWM-1001/1002/1003, 2001, 2002.
        """
        if not 1 <= limit <= MAX_TURNS:
            raise InvalidParameterError(f"limit is 1 to {MAX_TURNS}.", field="limit", limit=limit)
        session_id, current = await self.current(principal, of)
        session = await self.registry.session(principal.tenant, session_id, any_state=True)
        tags: Sequence[TurnTag] = ()
        words: Mapping[str, tuple[str, str]] = {}
        habits: Mapping[str, Habit] = {}
        brief: Mapping[str, Brief] = {}
        if session is None or may(principal, session.circle, Right.CONTENTS):
            turns = await self.registry.turns(principal.tenant, session_id, TurnQuery(limit + 1, before))
            tags = await self.registry.tags(principal.tenant, session_id)
            messages = await self._differing(principal.tenant, session_id, turns[:limit])
            words, habits = await aside_of(
                messages, lambda: (_words(turns[:limit], messages), _habits(turns[:limit], messages))
            )
            brief = await self._asked(principal.tenant, turns[:limit]) if asked else {}
        else:
            turns = await self._path(principal.tenant, current, limit + 1, before)
        origin = None if session is None else session.origin
        return TurnLog(
            session_id, current, turns[:limit], len(turns) > limit, tags, words, habits, origin, brief
        )

    async def latest(self, principal: Principal, sessions: Sequence[Session]) -> dict[str, Latest]:
        """By id, what the principal's own sessions among these are at; reading those of others would be for the audit."""
        own = [session.id for session in sessions if session.owner == principal.subject]
        turns = await self.registry.current_turns(principal.tenant, own)
        asked = await self._asked(principal.tenant, list(turns.values()))
        return {session_id: Latest(turn, asked.get(turn.id, Brief())) for session_id, turn in turns.items()}

    async def _asked(self, tenant: str, turns: Sequence[Turn]) -> dict[str, Brief]:
        return await self.registry.titles(tenant, [turn.id for turn in turns])

    async def tags(self, principal: Principal) -> Sequence[TurnTag]:
        """The newest 1,000 tags of the sessions that the principal sees, deleted ones included."""
        circles = None if has_everywhere(principal, Right.RECORD) else principal.circles
        return await self.registry.tags(principal.tenant, circles=circles)

    async def show(
        self,
        principal: Principal,
        of: TurnSource,
        *,
        tokens: bool = False,
        most: int | None = None,
        end: int | None = None,
    ) -> Transcript:
        """The messages of one turn's context; of a session's current one, or of a window. CWM-1001/1002/1003, 2001, 2002, 2007.

        Only the last ``most``, or the last ones before message ``end``, if these are given.
        """
        turn = await self.turn(principal, of)
        count = len(await self.registry.message_digests(turn))
        end = count if not end else min(end, count)
        first = 0 if most is None else max(end - most, 0)
        messages = await self.registry.turn_messages(turn, first, end)
        differing = await self._differing(turn.tenant, turn.session_id, [turn])
        token_ids = await self.registry.turn_tokens(turn) if tokens else None
        habits = await aside_of(differing, lambda: _habits([turn], differing))
        return Transcript(turn, messages, token_ids, habits.get(turn.id), first, count)

    async def turn(self, principal: Principal, of: TurnSource) -> Turn:
        """The turn that is shown: that of ``of``, or the current one. CWM-1001/1002/1003, 2001, 2002, 2007."""
        if of.turn_id is not None:
            turn, session = await turn_of(self.registry, principal, of.turn_id, Right.CONTENTS)
            await self.note(principal, session, turn=turn.id)
        else:
            turn_id = (await self.current(principal, of))[1]
            current_turn = None if turn_id is None else await self.registry.turn(principal.tenant, turn_id)
            if current_turn is None or current_turn.state is not TurnState.ENDED:
                raise TurnNotFoundError(_missing(of), turn=turn_id)
            turn = current_turn
        return turn

    async def context(self, principal: Principal, of: TurnSource) -> Context:
        """What ``of`` names, also a window from before CWM kept turns. CWM-1001/1002, 2001, 2002, 2007, 4004."""
        if of.window_name is not None:
            window = await self._window(principal, of.window_name)
            session = await self.registry.session(principal.tenant, window.session_id, any_state=True)
            snapshot = await self.registry.snapshot(principal.tenant, window.snapshot_id)
            turn = await self.registry.turn(principal.tenant, window.turn_id) if window.turn_id else None
            digests = await self.registry.message_digests(turn) if turn else ()
            if session is not None:
                return Context(session, snapshot.token_ids, digests, turn)
        turn = await self.turn(principal, of)
        session = await self.registry.session(principal.tenant, turn.session_id, any_state=True)
        if session is None:
            raise TurnNotFoundError(_missing(of), turn=turn.id)
        token_ids = await self.registry.turn_tokens(turn)
        return Context(session, token_ids, await self.registry.message_digests(turn), turn)

    async def message(self, context: Context, at: int) -> Message | None:
        """A message of the context. None if it has none there, or it is not kept."""
        if context.turn is None or at >= len(context.digests):
            return None
        (message,) = await self.registry.turn_messages(context.turn, at, at + 1)
        return message if message.content else None

    async def _differing(self, tenant: str, session_id: str, turns: Sequence[Turn]) -> _Contents:
        """The messages, by digest, at which requests left what was recorded."""
        digests = {digest for turn in turns for digest in (turn.old_message, turn.new_message) if digest}
        if digests:
            with suppress(StorageCorruptionError):
                messages = await self.registry.messages_with(tenant, session_id, sorted(digests))
                return {message.digest: message.content for message in messages}
        return {}

    async def _window(self, principal: Principal, name: str) -> Window:
        require_window_name(name)
        window = await window_of(self.registry, principal, name, Right.CONTENTS)
        await self.note(principal, window, window=name)
        return window

    async def current(self, principal: Principal, of: TurnSource) -> tuple[str, str | None]:
        """The session, and the turn that the session or window is at."""
        if of.window_name is not None:
            window = await self._window(principal, of.window_name)
            return window.session_id, window.turn_id
        session_id = require_session_id(of.session_id or "")
        session = await session_of(self.registry, principal, session_id, Right.CONTENTS)
        await self.note(principal, session, session=session_id)
        current = await self.registry.current_turn(principal.tenant, session_id)
        return session_id, None if current is None else current.id

    async def _path(self, tenant: str, turn_id: str | None, count: int, before: int | None) -> list[Turn]:
        """The turn and those that it came from, before a number: the newest ``count``."""
        path: list[Turn] = []
        while len(path) < count and turn_id and (turn := await self.registry.turn(tenant, turn_id)):
            turn_id = turn.parent
            if before is None or turn.number < before:
                path.append(turn)
        return path

    async def note(self, principal: Principal, owned: Owned, **names: str) -> None:
        """Audit that the principal reads what another owns."""
        if owned.owner != principal.subject:
            await self.journal.shared(principal, "transcript", owner=owned.owner, **names)


def _words(turns: Sequence[Turn], messages: _Contents) -> dict[str, tuple[str, str]]:
    texts = {digest: plain_text(content) for digest, content in messages.items()}
    both = {
        turn.id: [texts.get(each or "", "") for each in (turn.old_message, turn.new_message)]
        for turn in turns
    }
    return {turn_id: words_around(old, new) for turn_id, (old, new) in both.items() if old != new}


def _habits(turns: Sequence[Turn], messages: _Contents) -> dict[str, Habit]:
    habits = {
        turn.id: habit(turn.cause, messages.get(turn.old_message or ""), messages.get(turn.new_message or ""))
        for turn in turns
        if turn.cause
    }
    return {turn_id: name for turn_id, name in habits.items() if name is not None}


def _missing(of: TurnSource) -> str:
    if of.window_name is not None:
        return f"What was said in window '{of.window_name}' is not recorded: it is from before turns were kept, or they were deleted."
    return f"Session '{of.session_id}' has no recorded turn."
