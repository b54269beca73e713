"""One turn: what was said up to it, what it cost, and how to go on from it."""

from __future__ import annotations

from typing import Final

from cwm.domain.errors import SessionNotFoundError
from cwm.domain.habits import switch_against
from cwm.domain.turn import Turn, TurnSource, TurnState
from cwm.domain.visibility import Right
from cwm.services.turns.reading.history import Transcript, TurnLog
from cwm.transport.console.actions.turns import TURNS
from cwm.transport.console.actions.two_steps import links
from cwm.transport.console.go_on import Step, Way, ways
from cwm.transport.console.pages import Page, link
from cwm.transport.console.turns import transcript
from cwm.transport.console.turns.naming import source_of
from cwm.transport.console.views import Asked

_MESSAGES: Final = 40
_AROUND: Final = 100


async def turn(asked: Asked) -> Page:
    shown = await shown_page(asked, source_of(asked.part("turn")))
    log = await _log_around(asked, shown.turn)
    outlook = await asked.services.outlook.turn(asked.principal, shown.turn.id, Right.RECORD)
    is_current = shown.turn.id == log.current_turn
    near = {each.id: each for each in log.turns if each.state is TurnState.ENDED}
    return Page(
        "turn.html",
        {
            **await messages_of(shown),
            "parent": near.get(shown.turn.parent or ""),
            "children": sorted(
                (each for each in near.values() if each.parent == shown.turn.id), key=lambda each: each.number
            ),
            "previous": _next_to(shown.turn, list(near.values()), newer=False),
            "following": _next_to(shown.turn, list(near.values()), newer=True),
            "is_current": is_current,
            "owner": outlook.session.owner,
            "actions": links(
                TURNS,
                asked.principal,
                link("turns", shown.turn.id),
                (is_current, bool(outlook.tags)),
                outlook.session.circle,
            ),
            "tags": [tag.name for tag in log.tags if tag.turn_id == shown.turn.id],
            "words": log.words.get(shown.turn.id),
            "is_there": bool(log.turns),
            "ways": _ways(shown.turn, log),
            "trace": asked.traces.to(shown.turn.trace_id),
        },
    )


def _ways(turn: Turn, log: TurnLog) -> list[Way]:
    back = Step("Make it the conversation's current turn again:", f"cwm turns revert {turn.id}")
    return ways(turn.client, None if turn.id == log.current_turn else back, f"turn:{turn.id}", "MODEL")


async def _log_around(asked: Asked, turn: Turn) -> TurnLog:
    """The turns around it; none if its session was deleted, and a window or a tag has kept it."""
    source = TurnSource(session_id=turn.session_id)
    try:
        return await asked.services.history.log(asked.principal, source, _AROUND, turn.number + _AROUND // 2)
    except SessionNotFoundError:
        return TurnLog(turn.session_id, None, (), has_more=False, tags=(), words={})


async def shown_page(asked: Asked, of: TurnSource) -> Transcript:
    """The turn, and one page of the messages of its context: the newest, or those before message ``upto``."""
    return await asked.services.history.show(asked.principal, of, most=_MESSAGES, end=asked.number("upto"))


async def messages_of(shown: Transcript) -> dict[str, object]:
    habit, first = shown.habit, shown.first
    return {
        "turn": shown.turn,
        "messages": await transcript.read(shown.messages, first, shown.turn.parent_messages),
        "first": first,
        "end": first + len(shown.messages),
        "total": shown.total,
        "habit": habit,
        "switch": None if habit is None else switch_against(habit, shown.turn.client),
    }


def _next_to(turn: Turn, near: list[Turn], *, newer: bool) -> Turn | None:
    """The turn asked right after, or before, this one."""
    there = [each for each in near if (each.number > turn.number if newer else each.number < turn.number)]
    return (min if newer else max)(there, key=lambda each: each.number, default=None)
