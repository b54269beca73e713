"""Destination: the session that a request's turn is recorded in. It is found once, and everything after it reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cwm.domain.answers import RequestKeys
from cwm.domain.session import Session
from cwm.domain.turn import Joined, Message, Turn


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a session gets that the request opens: metadata, and the turn of another session that it goes on from."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class Destination:
    """``session_id`` is None where nothing is recorded; ``session`` is set if it was read, and ``is_new`` if there is none of this id.

    ``joined``: how it is known that the request belongs there. ``is_captured``: its client named no session of CWM. ``source``: the recorded turn that
    a request with only new ``messages`` goes on from. ``is_apart``: the turn is no part of the session's conversation. ``keys`` are the request's under
    these ``hints``, if sessions are found by them. ``number``: the turn must get this number, because nobody may have gone on from there meanwhile.
    """

    session_id: str | None = None
    joined: Joined | None = None
    session: Session | None = None
    is_new: bool = False
    is_captured: bool = False
    source: Turn | None = None
    messages: Sequence[Message] = ()
    is_apart: bool = False
    compactions: int | None = None
    new_session: NewSession = NewSession()
    keys: RequestKeys | None = None
    hints: tuple[str, ...] = ()
    number: int | None = None
