"""The list of conversations, the search in them, and one of them as its tree of turns."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import replace
from typing import Final

from cwm.domain.errors import CwmError, InvalidParameterError
from cwm.domain.habits import switch_against
from cwm.domain.names import SESSION_ID_PATTERN
from cwm.domain.session import Session, SessionQuery, SessionState
from cwm.domain.turn import Turn, TurnSource
from cwm.domain.visibility import visibility_of
from cwm.services.turns.reading.history import TurnLog
from cwm.transport.console.actions.conversations import CONVERSATIONS
from cwm.transport.console.actions.turns import TURNS
from cwm.transport.console.actions.two_steps import links
from cwm.transport.console.pages import Page, link
from cwm.transport.console.turns import tree
from cwm.transport.console.views import Asked

_PAGE: Final = 25
_TURNS: Final = 50
_FINDINGS: Final = 20
# Each message is read and unpacked: a page that looks at all of them would take seconds.
_SEARCH_SECONDS: Final = 0.05
_STATES: Final = tuple(state.value for state in SessionState if state is not SessionState.DELETED)


async def conversations(asked: Asked) -> Page:
    words, state = asked.text("q"), asked.text("state")
    if words:
        return await _found(asked, words)
    if state and state not in _STATES:
        raise InvalidParameterError(f"state is one of {', '.join(_STATES)}.", field="state")
    query = SessionQuery(
        states=frozenset({SessionState(state)}) if state else frozenset(map(SessionState, _STATES)),
        limit=_PAGE,
    )
    page = await asked.services.browse.sessions(asked.principal, query, asked.text("after") or None)
    latest = await asked.services.history.latest(asked.principal, page.sessions)
    return Page(
        "conversations.html",
        {
            "sessions": page.sessions,
            "latest": latest,
            "next_cursor": page.next_cursor,
            "is_first": not asked.text("after"),
            "state": state,
            "states": _STATES,
            "words": "",
        },
    )


async def _found(asked: Asked, words: str) -> Page:
    """The conversation with this id, those that have these words in id, client or tag, and the messages that have them."""
    cursor = asked.text("after") or None
    named, called, page = await asyncio.gather(
        _named(asked, words),
        asked.services.browse.sessions(asked.principal, SessionQuery(limit=_PAGE, called=words)),
        asked.services.search(
            asked.principal, words, limit=_FINDINGS, cursor=cursor, seconds=_SEARCH_SECONDS
        ),
    )
    others = [each for each in called.sessions if named is None or each.id != named.id]
    return Page(
        "found.html",
        {
            "words": words,
            "named": named,
            "called": others,
            "has_more": bool(called.next_cursor),
            "page": page,
        },
    )


async def _named(asked: Asked, words: str) -> Session | None:
    if not re.fullmatch(SESSION_ID_PATTERN[1:-1], words):
        return None
    try:
        return await asked.services.browse.record(asked.principal, words)
    except CwmError:
        return None


async def conversation(asked: Asked) -> Page:
    services, principal, session_id = asked.services, asked.principal, asked.part("session_id")
    before = asked.number("before")
    session = await services.browse.record(principal, session_id)
    log, above = await _page(asked, session_id, before)
    labels: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for window in await services.browse.windows_of(principal, session_id):
        labels[window.turn_id or ""].append(("window", window.name))
    for tag in log.tags:
        labels[tag.turn_id].append(("tag", tag.name))
    laid = tree.rows(log.turns, above)
    switches = {
        turn.id: switch_against(log.habits[turn.id], turn.client)
        for turn in log.turns
        if turn.id in log.habits
    }
    return Page(
        "conversation.html",
        {
            "session": session,
            "actions": links(
                CONVERSATIONS, principal, link("conversations", session_id), session, session.circle
            ),
            "visibility": visibility_of(session.circle),
            "log": log,
            "rows": laid,
            "lanes": tree.width(laid),
            "labels": labels,
            "switches": switches,
            "numbers": {turn.id: turn.number for turn in log.turns},
            "undoable": _summarised(log)
            if TURNS["revert"].offered_to(principal, session.circle, (False, False))
            else set(),
            "before": before,
            "next_before": log.turns[-1].number if log.has_more else None,
        },
    )


def _summarised(log: TurnLog) -> set[str]:
    """The turns before whose summaries the conversation can go on: those that it went on from by a summary. None where its current turn is on another page."""
    by_id = {turn.id: turn for turn in log.turns}
    before: set[str] = set()
    turn = by_id.get(log.current_turn or "")
    while turn is not None:
        if turn.compacts is not None:
            before.add(turn.compacts)
        turn = by_id.get(turn.compacts or turn.parent or "")
    return before


async def _page(asked: Asked, session_id: str, before: int | None) -> tuple[TurnLog, list[Turn]]:
    """The turns before a number, and as many of those above them, from which lines lead down to them."""
    history, source = asked.services.history, TurnSource(session_id=session_id)
    if before is None:
        return await history.log(asked.principal, source, _TURNS, asked=True), []
    log = await history.log(asked.principal, source, 2 * _TURNS, before + _TURNS, asked=True)
    above = [turn for turn in log.turns if turn.number >= before]
    turns = log.turns[len(above) :]
    has_more = log.has_more or len(turns) > _TURNS
    return replace(log, turns=turns[:_TURNS], has_more=has_more), above
