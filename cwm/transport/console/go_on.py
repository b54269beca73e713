"""How a conversation is gone on with in each client: what makes its session be at a context, then what the client is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cwm.domain.clients.known import CLIENTS


@dataclass(frozen=True, slots=True)
class Step:
    """``command`` is empty where the client has none."""

    words: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """``is_own``: the conversation is this client's."""

    client: str
    steps: Sequence[Step]
    is_own: bool = False


_THERE: Final = "Then, in the folder where the conversation was held:"
_BY_HAND: Final = (
    "Then open the conversation in the client's own list and go on. Its session must be this one."
)


def ways(client: str, first: Step | None, source: str, model: str) -> list[Way]:
    """One for each client, the conversation's own first. ``first`` comes before the client's own; ``source`` is a value of CWM-Continue."""
    before = [] if first is None else [first]
    agents = [
        Way(
            each.title,
            [*before, Step(_THERE, each.resume) if each.resume else Step(_BY_HAND)],
            is_own=each.is_behind(client),
        )
        for each in CLIENTS
        if each.user_agents
    ]
    programs = [
        Way(each.title, [Step("Only what is new:", each.ask(source, model))])
        for each in CLIENTS
        if each.ask is not None
    ]
    return sorted([*agents, *programs], key=lambda way: not way.is_own)
