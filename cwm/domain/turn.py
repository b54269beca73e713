"""Turns: requests to the model and their answers, which make a session a tree.

A turn is recorded once, under its parent, and never changes. Its context is the token ids of its prompt and answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from cwm.domain.errors import InvalidParameterError
from cwm.domain.names import require_session_id, require_turn_tag, require_window_name
from cwm.domain.prefix import TokenIds

TAG: Final = "tag:"
"""Begins the name of a tag where a turn is named: no turn's id has a colon."""
_ID_CHARS: Final = 64
_SESSION_CHARS: Final = 36


class TurnState(StrEnum):
    """Whether the answer of a turn is still awaited or recorded."""

    ASKED = "asked"
    ENDED = "ended"


class Joined(StrEnum):
    """How it was known that a turn belongs to its session.

    By its client's own word (``CLIENT``); by tool calls whose ids an engine drew at random (``ID``); by all that was said up to an answer, which no other
    session has (``ANSWERS``); else it is the best guess (``ASSUMED``).
    """

    CLIENT = "client"
    ID = "id"
    ANSWERS = "answers"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Profile:
    """Digests of a request's system text and of its tools; empty where it has none. They tell agents of one session apart.

    ``tools``: the digest of the tools in any order, a dot, and that of them in this order, which older records do not have.
    """

    system: str = ""
    tools: str = ""

    @property
    def agent(self) -> tuple[str, str]:
        """What all requests of one agent have in common, in whichever order its tools are."""
        return self.system, self.tools.partition(".")[0]

    @property
    def tool_order(self) -> str:
        return self.tools.partition(".")[2]


@dataclass(frozen=True, slots=True)
class Turn:
    """The record of a turn. Token counts are positions in its context.

    ``number`` orders the turns of a session by when they were asked. The turn leaves ``parent`` at ``parent_at``:
    its first ``parent_at`` tokens are its parent's. A turn without a parent begins at 0. ``prompt_tokens`` is where the
    answer begins and ``total_tokens`` where it ends; ``prompt_digest`` and ``digest`` are those of the token ids up to
    there. It ``continues`` its parent when it leaves it at or behind the end of the parent's prompt; else it branches off.
    Its first ``parent_messages`` messages are its parent's. ``main`` says that the turn belonged to the main line
    when it ended. The client of an ``abandoned`` turn did not wait for its whole answer. Its request first left the messages of the
    then current turn at the message ``diverged_at``, for this ``cause`` (without one: it extended them; without a message: only its tokens left them): it has ``new_message`` there in
    place of ``old_message`` (digests). The engine had the KV of ``cached_tokens`` of its prompt, under ``cache_salt``, and took ``first_token_ms`` to the
    first token that it sent; ``missed`` says why that KV was less than the parent predicts. ``holder`` is the gateway that awaits the answer, ``author`` the subject that asked.
    ``chain`` digests what was said up to and with the answer, where its session is found by that; only its request's, until it ends or if it is abandoned. It ``compacts`` the turn that the line ended
    with before, if its client goes on with a summary instead of the whole conversation. ``compactions``: how many summaries of the
    conversation its client says it has made; None if it does not say. ``router_decision``: what a router in front of the engines says that it chose.
    ``trace_id``: the trace of the request that asked, where that is kept. ``calls`` and ``core_chain`` are as in :class:`cwm.domain.answers.AnswerKeys`, of its answer;
    read back they are the names that they are stored under. ``joined`` is a :class:`Joined`, empty for the first turn of a session that was opened for it.
    """

    tenant: str
    session_id: str
    id: str
    author: str
    asked_at: datetime
    number: int = 0
    state: TurnState = TurnState.ASKED
    holder: str = ""
    client: str = ""
    profile: Profile = field(default_factory=Profile)
    parent: str | None = None
    parent_at: int = 0
    parent_messages: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0
    prompt_digest: str = ""
    digest: str = ""
    continues: bool = False
    main: bool = False
    abandoned: bool = False
    cached_tokens: int | None = None
    diverged_at: int | None = None
    cause: str = ""
    old_message: str | None = None
    new_message: str | None = None
    cache_salt: str | None = None
    first_token_ms: int | None = None
    missed: str | None = None
    ended_at: datetime | None = None
    chain: str | None = None
    compacts: str | None = None
    compactions: int | None = None
    router_decision: str | None = None
    trace_id: str | None = None
    calls: str | None = None
    core_chain: str | None = None
    joined: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message as the client sent or got it. ``digest`` names its content; transport marks do not count.

    Without content: it is not kept.
    """

    digest: str
    content: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnParts:
    """What a turn adds to its parent: the token ids behind ``parent_at`` and the messages behind ``parent_messages``."""

    token_ids: TokenIds
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnTag:
    """A tenant's name for a recorded turn. It keeps the turn, and those that its context consists of.

    An ``automatic`` one, which CWM set before a compaction, goes with its session.
    """

    tenant: str
    name: str
    session_id: str
    turn_id: str
    author: str
    created_at: datetime
    automatic: bool = False


def compaction_tag(before: Turn) -> str:
    """The name of the automatic tag of the last turn before a compaction. Its end is the turn's number."""
    return f"{before.session_id[-_SESSION_CHARS:]}.before-compaction-{before.number}"


@dataclass(frozen=True, slots=True)
class TurnQuery:
    """At most ``limit`` turns of a session, the newest first, with numbers below ``before`` (None: any) and from ``first`` on."""

    limit: int = 50
    before: int | None = None
    first: int = 1


@dataclass(frozen=True, slots=True)
class TurnSource:
    """What names a context: exactly one of a session (its current turn), a window and a turn (its id, or ``tag:NAME``)."""

    session_id: str | None = None
    window_name: str | None = None
    turn_id: str | None = None

    @classmethod
    def parse(cls, text: str, field: str) -> TurnSource:
        """``session:ID``, ``window:NAME``, ``turn:ID`` or ``tag:NAME``. CWM-1003 names ``field``."""
        kind, _, name = text.partition(":")
        if name and kind == "session":
            return cls(session_id=require_session_id(name))
        if name and kind == "window":
            return cls(window_name=require_window_name(name))
        if name and kind == "turn":
            return cls(turn_id=name[:_ID_CHARS])
        if name and kind == "tag":
            return cls(turn_id=f"{TAG}{require_turn_tag(name)}")
        raise InvalidParameterError(f"{field} is session:ID, window:NAME, turn:ID or tag:NAME.", field=field)
