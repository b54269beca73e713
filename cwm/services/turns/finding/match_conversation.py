"""Matches a request with recorded answers that it carries, where its client names no conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from cwm.domain.answers import AnswerKeys, KeyKind, RecordedAnswer, RequestKeys, request_keys
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.turn import Joined, Message, Profile, Turn
from cwm.ports.registry import Registry
from cwm.services.aside import aside_of
from cwm.services.turns.finding.named_session import is_own

BY_NAME: Final = "named"
"""The hint of keys in conversations that their clients name: others are not joined to them by what they say."""
_ANSWERS: Final = 16


async def keys_of(messages: Sequence[Message], *hints: str) -> RequestKeys:
    """:func:`request_keys`, in a thread if there is much to read."""
    contents = [message.content for message in messages]
    return await aside_of(contents, lambda: request_keys(messages, _ANSWERS, *hints))


@dataclass(frozen=True, slots=True)
class Match:
    """The recorded turn that a request goes on from.

    ``kind``: what was equal. ``is_another_agent``: the request is another agent's, which has a session of its own. ``number``: the next turn must get it, where an equal session would do as well.
    """

    turn: Turn
    session: Session
    joined: Joined
    kind: KeyKind
    is_another_agent: bool = False
    number: int | None = None


@dataclass(frozen=True, slots=True)
class MatchConversation:
    """Only turns of the same tenant, author and model count, in sessions that their author may still use."""

    registry: Registry

    async def __call__(
        self, principal: Principal, keys: RequestKeys, model: str, profile: Profile, *, again: bool
    ) -> Match | None:
        """The turn whose answer the request carries, the last one first; without answers, the same request that its client gave up or sends ``again``."""
        if not keys.answers:
            return await self._repeated(principal, keys, model, again=again)
        match = await self._proven(principal, keys.answers, model) or await self._assumed(
            principal, keys.answers, model
        )
        if match is None:
            return None
        # All that was said includes the system text.
        is_another = match.kind is not KeyKind.CHAIN and _is_another_agent(profile, match.turn)
        return replace(match, is_another_agent=is_another)

    async def origin(self, principal: Principal, keys: RequestKeys, model: str) -> Turn | None:
        """The turn that a conversation with a name of its own goes on from."""
        match = await self._proven(principal, keys.answers, model)
        return None if match is None else match.turn

    async def _repeated(
        self, principal: Principal, keys: RequestKeys, model: str, *, again: bool
    ) -> Match | None:
        newest = max(
            await self._recorded(principal, model, KeyKind.CHAIN, [keys.chain]), key=_asked_at, default=None
        )
        if newest is None or not (newest.turn.abandoned or again):
            return None
        return Match(newest.turn, newest.session, Joined.ASSUMED, KeyKind.CHAIN)

    async def _proven(self, principal: Principal, answers: Sequence[AnswerKeys], model: str) -> Match | None:
        """By all that was said up to an answer, or by the random ids of an answer's tool calls: the deepest of both."""
        place, equal = await self._found(principal, model, KeyKind.CHAIN, answers)
        proven, by_calls = await self._found(principal, model, KeyKind.CALLS, answers[:place])
        if not by_calls:
            return _chosen(equal, KeyKind.CHAIN, has_proof=_has_proof(answers[place:]))
        later = await self._with_later(principal, model, by_calls, answers[:proven])
        return later or _chosen(by_calls, KeyKind.CALLS, has_proof=True)

    async def _with_later(
        self,
        principal: Principal,
        model: str,
        equal: Sequence[RecordedAnswer],
        later_answers: Sequence[AnswerKeys],
    ) -> Match | None:
        """Of several sessions that share an answer, the one that has a later answer of the request."""
        session_ids = {one.session.id for one in equal}
        for each in later_answers if len(session_ids) > 1 else ():
            _, later = await self._found(principal, model, KeyKind.CORE_CHAIN, [each])
            for one in later:
                if one.session.id in session_ids:
                    return Match(one.turn, one.session, Joined.ID, KeyKind.CORE_CHAIN)
        return None

    async def _assumed(self, principal: Principal, answers: Sequence[AnswerKeys], model: str) -> Match | None:
        """By what was said besides the system text and the client's surroundings, where nobody went on from there."""
        _, tips = await self._found(principal, model, KeyKind.CORE_CHAIN, answers, current=True)
        match = _chosen(tips, KeyKind.CORE_CHAIN, has_proof=False)
        return None if match is None else replace(match, joined=Joined.ASSUMED)

    async def _found(
        self,
        principal: Principal,
        model: str,
        kind: KeyKind,
        answers: Sequence[AnswerKeys],
        *,
        current: bool = False,
    ) -> tuple[int, list[RecordedAnswer]]:
        """The recorded answers that equal the first of these that any equals, and its position; the number of ``answers`` without any."""
        keys = [key for each in answers if (key := each.of(kind)) is not None]
        found = await self._recorded(principal, model, kind, keys, current=current) if keys else []
        place = (at for at, each in enumerate(answers) if found and each.of(kind) == found[0].key)
        return next(place, len(answers)), found

    async def _recorded(
        self, principal: Principal, model: str, kind: KeyKind, keys: Sequence[str], *, current: bool = False
    ) -> list[RecordedAnswer]:
        who = (principal.tenant, principal.subject)
        found = await self.registry.recorded_answers(*who, model, kind, keys, current=current)
        return [one for one in found if is_own(principal, one.session)]


def _has_proof(answers: Sequence[AnswerKeys]) -> bool:
    return any(each.calls is not None for each in answers)


def _chosen(equal: Sequence[RecordedAnswer], kind: KeyKind, *, has_proof: bool) -> Match | None:
    """One of the equal answers: the oldest that nobody went on from; else the one that was computed, or without proof the one whose session was used last."""
    if not equal:
        return None
    is_only = len({one.session.id for one in equal}) == 1
    joined = Joined.ID if has_proof else Joined.ANSWERS if is_only else Joined.ASSUMED
    tips = [one for one in equal if one.is_current]
    open_tips = [one for one in tips if not one.is_awaited]
    if open_tips:
        oldest = min(open_tips, key=_asked_at)
        return Match(
            oldest.turn, oldest.session, joined, kind, number=None if is_only else oldest.next_number
        )
    if has_proof:
        first = min(tips or equal, key=_asked_at)
        return Match(first.turn, first.session, joined, kind)
    last = max(equal, key=lambda one: (one.session.updated_at, one.turn.asked_at))
    return Match(last.turn, last.session, joined, kind)


def _asked_at(answer: RecordedAnswer) -> datetime:
    return answer.turn.asked_at


def _is_another_agent(profile: Profile, turn: Turn) -> bool:
    (system, tools), (line_system, line_tools) = profile.agent, turn.profile.agent
    return system != line_system and tools != line_tools
