"""Two contexts side by side: what they have in common, what differs first, and what a switch would cost."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.domain.divergence import words_around
from cwm.domain.messages import plain_text
from cwm.domain.turn import Message, Turn, TurnSource
from cwm.services.turns.reading.compare import Difference
from cwm.transport.console.pages import Page, link
from cwm.transport.console.turns import transcript
from cwm.transport.console.turns.naming import source_of
from cwm.transport.console.turns.transcript import Said
from cwm.transport.console.views import Asked


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: what it is called, where it is shown, and the first message that the other does not have."""

    kind: str
    name: str
    address: str
    turn: Turn | None
    tokens: int
    said: Said | None


async def compare(asked: Asked) -> Page:
    left, right = asked.text("left"), asked.text("right")
    names = {"left": left, "right": right}
    if not (left and right):
        return Page("compare.html", {**names, "difference": None})
    sources = _source(left, "left"), _source(right, "right")
    difference = await asked.services.compare(asked.principal, *sources)
    return Page(
        "compare.html",
        {
            **names,
            "difference": difference,
            "sides": await _sides(*sources, difference),
            "words": _words(difference),
        },
    )


def _source(text: str, field: str) -> TurnSource:
    source = TurnSource.parse(text, field)
    return source if source.turn_id is None else source_of(source.turn_id)


async def _sides(left: TurnSource, right: TurnSource, found: Difference) -> tuple[Side, Side]:
    at = found.common_messages
    return (
        await _side(left, found.left_turn, found.left_tokens, found.left_message, at),
        await _side(right, found.right_turn, found.right_tokens, found.right_message, at),
    )


async def _side(of: TurnSource, turn: Turn | None, tokens: int, message: Message | None, at: int) -> Side:
    said = None if message is None else (await transcript.read([message], at, at + 1))[0]
    if of.window_name is not None:
        return Side("Window", of.window_name, link("windows", of.window_name), turn, tokens, said)
    if of.session_id is not None:
        return Side("Conversation", of.session_id, link("conversations", of.session_id), turn, tokens, said)
    turn_id = of.turn_id or ""
    name = turn_id if turn is None else f"Turn {turn.number}"
    return Side("Turn", name, link("turns", turn_id), turn, tokens, said)


def _words(found: Difference) -> tuple[str, str] | None:
    """What the two messages say around the first place where they differ."""
    if found.left_message is None or found.right_message is None:
        return None
    left, right = plain_text(found.left_message.content), plain_text(found.right_message.content)
    return None if left == right else words_around(left, right)
