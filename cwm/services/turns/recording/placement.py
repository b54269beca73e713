"""Placement: finds the parent of a turn among the recorded turns of its session, by token ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cwm.domain.divergence import Divergence, replaces_beginning
from cwm.domain.errors import StorageCorruptionError
from cwm.domain.main_line import Standing, compacts, standing
from cwm.domain.prefix import TokenIds, common_length, digests_at
from cwm.domain.turn import Joined, Message, Profile, Turn, TurnQuery, TurnState
from cwm.ports.turns import TurnRecords

_RECENT: Final = TurnQuery(limit=1000)
_COMPARED: Final = 16
_BESIDE: Final = 16


@dataclass(frozen=True, slots=True)
class Said:
    """What the request of a turn says.

    ``whole``: ``messages`` are the whole conversation, not only what is new. ``apart``: the turn is no part of the session's
    conversation. ``line``: the digests of the messages of the turn ``current``, which was current when it was asked;
    ``diverged``: where it leaves them. ``chain`` and ``core_chain`` digest what is said up to here under these ``hints``, if sessions are found by that. ``compactions``: how
    many summaries of the conversation its client says it has made.
    """

    messages: Sequence[Message] = ()
    profile: Profile = field(default_factory=Profile)
    whole: bool = True
    apart: bool = False
    current: str | None = None
    line: Sequence[str] = ()
    diverged: Divergence | None = None
    chain: str | None = None
    core_chain: str | None = None
    hints: tuple[str, ...] = ()
    joined: Joined | None = None
    compactions: int | None = None

    @property
    def answers(self) -> frozenset[str]:
        """Digests of the messages that are an assistant's."""
        return frozenset(
            message.digest for message in self.messages if message.content.get("role") == "assistant"
        )

    def extends(self, current: Turn) -> bool:
        """Whether it has all messages of ``current``, which was current when it was asked, and the same tools."""
        return self.whole and bool(self.line) and self.diverged is None and self.current == current.id


@dataclass(frozen=True, slots=True)
class Prompt:
    """The first ``length`` of the token ids of a context, packed once."""

    context: TokenIds
    packed: bytes
    length: int

    @property
    def token_ids(self) -> TokenIds:
        return self.context[: self.length]

    def digests(self, lengths: Collection[int]) -> dict[int, str]:
        """The digests of so many ids, where the prompt reaches them."""
        return digests_at(self.packed, [length for length in lengths if length <= self.length])


@dataclass(frozen=True, slots=True)
class Parentage:
    """Where a turn leaves its parent (None: at the beginning), in tokens and messages, and what it is to the main line.

    ``compacts``: the turn that the line ended with, where it goes on from a summary. ``rewritten``: it has all messages of the line, and
    other tokens.
    """

    parent: Turn | None = None
    parent_at: int = 0
    parent_messages: int = 0
    continues: bool = False
    standing: Standing = Standing.NEXT
    compacts: Turn | None = None
    rewritten: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Looks at the newest 1,000 turns of a session; a turn that continues none of them is compared with 16, whose ``tokens`` are read."""

    records: TurnRecords
    tokens: Callable[[Turn], Awaitable[TokenIds]]

    async def __call__(self, turn: Turn, prompt: Prompt, statement: Said) -> Parentage:
        """The place of an asked turn with this prompt. CWM-4002.

        If a recorded turn that must be compared is damaged, this one begins a tree of its own and is current, unless it is apart.
        """
        try:
            return await self._parentage(turn, prompt, statement)
        except StorageCorruptionError:
            return _alone(statement)

    async def _parentage(self, turn: Turn, prompt: Prompt, statement: Said) -> Parentage:
        current = await self.records.current_turn(turn.tenant, turn.session_id)
        if current is None:
            return _alone(statement)
        digests = prompt.digests((current.prompt_tokens, current.total_tokens))
        parent, parent_at = (
            (current, current.total_tokens)
            if digests.get(current.total_tokens) == current.digest and turn.number == current.number + 1
            else await self._parent(turn, prompt, current, digests)
        )
        line = (
            statement.line if current.id == statement.current else await self.records.message_digests(current)
        )
        on_line = parent is not None and parent.id == current.id
        inherited = () if parent is None else line if on_line else await self.records.message_digests(parent)
        continues = parent is not None and parent_at >= parent.prompt_tokens
        resumes = continues and parent is not None and parent.main
        extends = resumes or digests.get(current.prompt_tokens) == current.prompt_digest
        carries = bool(statement.answers.intersection(line)) if line else bool(statement.answers)
        if carries and continues and parent is not None:
            carries = not await self._is_beside(parent)
        is_summary = (
            statement.whole
            and not (statement.apart or continues)
            and compacts(
                turn,
                current,
                extends=extends,
                carries=carries and not replaces_beginning(statement.messages, line),
            )
        )
        request_digests = tuple(message.digest for message in statement.messages)
        return Parentage(
            parent,
            parent_at,
            common_length(request_digests, tuple(inherited)) if statement.whole else len(inherited),
            continues,
            Standing.SIDE if statement.apart else standing(turn, current, extends=extends, carries=carries),
            current if is_summary else None,
            statement.extends(current)
            and digests.get(current.total_tokens) != current.digest
            and not _is_at_end(current, parent_at if on_line else 0, statement),
        )

    async def _is_beside(self, parent: Turn) -> bool:
        """Whether a turn belongs to another conversation than the line, whatever short answers both have. One that ended late does not."""
        if parent.main:
            return False
        before = await self.records.turn(parent.tenant, parent.parent or "") if parent.continues else None
        return before is None or not before.main

    async def _parent(
        self, turn: Turn, prompt: Prompt, current: Turn, digests: Mapping[int, str]
    ) -> tuple[Turn | None, int]:
        """The parent and the token at which it is left: the turn that the prompt continues the furthest, else branches from."""
        query = _RECENT
        if digests.get(current.prompt_tokens) == current.prompt_digest:
            # Only what came after the current turn, or was asked again beside it, can be continued further.
            query = replace(_RECENT, first=current.number - _BESIDE)
        recent = [
            candidate
            for candidate in await self.records.turns(turn.tenant, turn.session_id, query)
            if candidate.state is TurnState.ENDED
        ]
        lengths = {length for one in recent for length in (one.prompt_tokens, one.total_tokens)}
        digests = prompt.digests(lengths)
        continued = [
            (one.total_tokens if digests.get(one.total_tokens) == one.digest else one.prompt_tokens, one)
            for one in recent
            if one.prompt_tokens < prompt.length and digests[one.prompt_tokens] == one.prompt_digest
        ]
        if continued:
            reach, parent = max(continued, key=lambda one: (one[0], one[1].number))
            if reach < parent.total_tokens:
                reach = common_length(await self.tokens(parent), prompt.token_ids)
            return parent, reach
        return await self._branch(turn, prompt, current, recent)

    async def _branch(
        self, turn: Turn, prompt: Prompt, current: Turn, recent: Sequence[Turn]
    ) -> tuple[Turn | None, int]:
        by_id = {one.id: one for one in recent}
        beginnings = [one for one in recent if one.parent_at < by_id.get(one.parent or "", one).prompt_tokens]
        longest, parent = 0, None
        for one in (current, *beginnings[:_COMPARED]):
            length = common_length(await self.tokens(one), prompt.token_ids)
            if length > longest:
                longest, parent = length, one
        # The tokens up to there may be an ancestor's. Two turns with one prompt have one parent.
        while parent is not None and (
            longest <= parent.parent_at or parent.prompt_digest == turn.prompt_digest
        ):
            longest, parent = min(longest, parent.parent_at), by_id.get(parent.parent or "")
        return parent, longest if parent else 0


def _is_at_end(current: Turn, parent_at: int, statement: Said) -> bool:
    """Whether a prompt leaves ``current`` in a tool call, which clients write anew, or at the token that ended its answer."""
    has_calls = bool(statement.messages[len(statement.line) - 1].content.get("tool_calls"))
    return parent_at >= (current.prompt_tokens if has_calls else current.total_tokens - 1)


def _alone(statement: Said) -> Parentage:
    """The place of a turn with nothing before it."""
    return Parentage(standing=Standing.SIDE if statement.apart else Standing.NEXT)
