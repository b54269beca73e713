"""The durable record of turns.

Every method takes a tenant and answers only about that tenant. Each call is one transaction. Errors are those of the
registry: CWM-4001 (writing), CWM-4002 (reading), CWM-4004 for damaged tokens or messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from cwm.domain.answers import KeyKind, RecordedAnswer
from cwm.domain.keep import TreeLimit, TreeSize
from cwm.domain.messages import Brief
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session
from cwm.domain.turn import Message, Turn, TurnParts, TurnQuery, TurnTag
from cwm.domain.word_search import Finding, Words


class TurnRecords(Protocol):
    async def begin_turn(
        self, turn: Turn, session_created_at: datetime, number: int | None = None
    ) -> Turn | None:
        """Record that a turn is asked now, and mark its session as used at ``turn.asked_at``.

        Returns the turn with its number and the registry's holder. None, and nothing changed, when the session is not
        live or not the one created at ``session_created_at``, or the turn would not get this ``number``.
        """

    async def end_turn(
        self,
        turn: Turn,
        parts: TurnParts,
        metadata: Mapping[str, Any] | None = None,
        revision: int | None = None,
        *,
        begins_line: bool = False,
    ) -> Session | None:
        """Record the answer of an asked turn, and return its session.

        A ``main`` turn becomes the session's current one, with this ``metadata`` of the session if given: the session
        becomes active and its revision grows by one. If a turn that was asked later is current already, the session
        stays and the turn is recorded as not ``main``, unless it ``begins_line``: then the others of the session are not ``main`` any more.
        Returns None, and forgets the turn, when the session is no longer live, no longer the one the turn was asked in, or, if given, no longer at ``revision``.
        """

    async def revert(self, turn: Turn, at: datetime) -> Session | None:
        """Make an ended turn its session's current one, whatever is still in flight. None when the session is not live."""

    async def remove_branch(self, turn: Turn) -> int:
        """Remove an ended turn and all that came from it, and return how many turns that were.

        Nothing changes with CWM-3004, when one of them is the session's current turn, in a window or has a tag, and with CWM-3002
        (retryable) while a turn of the session is in flight.
        """

    async def tag(self, tag: TurnTag, *, move: bool = False) -> TurnTag | None:
        """Name an ended turn, and return the tag that has the name now: another turn's, which stays unless ``move``.

        None when there is no such ended turn, and for an ``automatic`` tag of a deleted session.
        """

    async def untag(self, tenant: str, name: str) -> TurnTag | None:
        """Remove a tag and return it, if there is one. Turns of a deleted session that only it kept go with it."""

    async def tags(
        self, tenant: str, session_id: str | None = None, circles: frozenset[str] | None = None
    ) -> list[TurnTag]:
        """The newest 1,000 tags: of the turns of one session, or of all sessions in one of ``circles`` (in any if None)."""

    async def tree_size(self, tenant: str, session_id: str) -> TreeSize:
        """How large the tree of a session is, turns in flight included."""

    async def make_room(self, session: Session, limit: TreeLimit) -> TreeSize:
        """Remove side branches of the session until ``limit`` is no longer reached, and return what was removed.

        Branches go whole, those unused for longest first. A branch stays when a turn of the main line, the current
        turn, a window or a tag came from it. CWM-3002 (retryable) while a turn of the session is in flight.
        """

    async def unfreeze(self, session: Session, at: datetime) -> Session | None:
        """Make a frozen or expired session active again; its windows stay. None when it is neither, or not that session."""

    async def drop_turn(self, turn: Turn) -> None:
        """Forget an asked turn that left no answer. Nothing changes if it ended."""

    async def turn(self, tenant: str, turn_id: str) -> Turn | None:
        """The turn with this id, or the one that the tag of ``tag:NAME`` names."""

    async def current_turn(self, tenant: str, session_id: str) -> Turn | None:
        """The turn whose context is the session's; None before the first, and for an unknown session."""

    async def current_turns(self, tenant: str, session_ids: Sequence[str]) -> dict[str, Turn]:
        """The turn that each of these sessions is at, by session id; without those that have none."""

    async def titles(self, tenant: str, turn_ids: Sequence[str]) -> dict[str, Brief]:
        """By turn id, who asked each of these ended turns, and in brief what.

        No message is read, but for turns that were recorded by a CWM that kept no titles: of those a small one; a large or damaged one is left out.
        """

    async def recorded_answers(
        self,
        tenant: str,
        author: str,
        model: str,
        kind: KeyKind,
        keys: Sequence[str],
        *,
        current: bool = False,
    ) -> list[RecordedAnswer]:
        """The author's turns with the first of these keys that any has, in sessions of the author and the model that are not deleted.

        At most 64 of the newest 256: first those that their session's context ends with while no later turn is in flight, the oldest first; then the others, the newest
        first. ``current``: only those that their session's context ends with.
        """

    async def turns(self, tenant: str, session_id: str, query: TurnQuery) -> list[Turn]:
        """Turns of a session in any state, the newest first."""

    async def turn_tokens(self, turn: Turn) -> TokenIds:
        """The exact token ids of an ended turn's context, from position 0. CWM-4004."""

    async def turns_in_flight(self, tenant: str, author: str) -> list[Turn]:
        """The author's turns whose answer is awaited, at most 1,000."""

    async def asked_turns_of_every_tenant(self, limit: int) -> list[Turn]:
        """Turns whose answer is awaited, the first asked first."""

    async def message_digests(self, turn: Turn) -> tuple[str, ...]:
        """The digests of :meth:`turn_messages`."""

    async def messages_with(
        self, tenant: str, session_id: str, digests: Sequence[str], *, whole: bool = False
    ) -> list[Message]:
        """Those of a session's messages that have these digests, in any order.

        Together they take at most ``weight.MOST_AT_ONCE``, the last ones first; in place of the others stands how large they are, or, with
        ``whole``, CWM-4006 is raised. CWM-4004.
        """

    async def findings(
        self, tenant: str, session_id: str, words: Words, up_to: str | None = None
    ) -> tuple[list[Finding], int]:
        """The messages of a session that have the words, the newest first, and how many messages were read.

        Read are the newest 256 MB, see ``weight``, without single messages that are too large. With ``up_to`` only those in the context of this turn. A damaged message is not found.
        """

    async def turn_messages(
        self, turn: Turn, first: int = 0, end: int | None = None, *, whole: bool = False
    ) -> list[Message]:
        """The messages of an ended turn's context, oldest first: its prompt's, then its answer. Only those from ``first`` on up to ``end``, as in a slice.

        They are read as by :meth:`messages_with`. CWM-4004, 4006.
        """
