"""The main line: the turns of a session that are its conversation, apart from titles, summaries and sub-agents.

A session's current turn is always one of its main line. What a turn is, is decided by what its request says: its system
text, its tools, and which messages of the line it carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from cwm.domain.turn import Turn, TurnState

_QUESTION_AND_ANSWER: Final = 2


class Standing(Enum):
    """What a turn that ended is to the main line.

    ``NEXT``: it is the line's last turn unless one that was asked later is. ``FIRST``: the line begins with it, even if a turn
    that was asked later was taken for the line.
    """

    SIDE = "side"
    NEXT = "next"
    FIRST = "first"


def standing(turn: Turn, current: Turn | None, *, extends: bool, carries: bool) -> Standing:
    """The standing of an ended turn to the line whose last turn is ``current``.

    ``extends``: the turn's prompt begins with the prompt of ``current``, or goes on from another turn of the main line. ``carries``: it
    has an assistant's message of the line. The line begins with the first turn that has tools. If none has, it begins with the longest prompt;
    without system text too, with the turn that was asked first: a title can be longer than the chat. A turn whose client
    did not wait for the answer gives way to the next. A turn whose client says that it goes on from a summary is the next.
    """
    if current is None or announces(turn, current):
        return Standing.NEXT
    lacks_tools = bool(current.profile.tools) and not turn.profile.tools
    if (extends or carries) and not lacks_tools:
        return Standing.NEXT
    if turn.profile.tools and not current.profile.tools:
        return Standing.FIRST
    if turn.profile.agent != current.profile.agent:
        return Standing.SIDE
    if current.profile.tools or current.abandoned:
        return Standing.NEXT
    return _standing_by_beginning(turn, current)


def _standing_by_beginning(turn: Turn, current: Turn) -> Standing:
    """The standing of a turn without tools that has none of the line, whose system text it has."""
    if not turn.profile.system:
        begins = _precedes(turn, current)
    elif turn.prompt_tokens == current.prompt_tokens:
        return Standing.NEXT
    else:
        begins = turn.prompt_tokens > current.prompt_tokens
    return Standing.FIRST if begins and not turn.abandoned else Standing.SIDE


def compacts(turn: Turn, current: Turn, *, extends: bool, carries: bool) -> bool:
    """Whether an ended turn goes on with the line from a summary: its client says so, or it is the same agent without any answer."""
    if None not in (turn.compactions, current.compactions):
        return announces(turn, current)
    same_agent = bool(turn.profile.tools) and turn.profile.agent == current.profile.agent
    return same_agent and not (extends or carries or current.abandoned)


def announces(turn: Turn, current: Turn) -> bool:
    """Whether the client of a turn says that it summarised the conversation since ``current``."""
    before, after = current.compactions, turn.compactions
    return before is not None and after is not None and after > before


def may_become_current(turn: Turn, current: Turn | None) -> bool:
    """Whether a turn that is still in flight may become the line's last one."""
    if current is None or (turn.profile.tools and not current.profile.tools) or _precedes(turn, current):
        return True
    return turn.number > current.number and (
        turn.profile.agent == current.profile.agent or announces(turn, current)
    )


def _precedes(turn: Turn, current: Turn) -> bool:
    """Whether a turn without system text and tools was asked before ``current``, the only one that ended in the session's line."""
    is_bare = not any((*turn.profile.agent, *current.profile.agent))
    is_only = current.parent is None and current.session_id == turn.session_id
    return is_bare and is_only and turn.number < current.number


def rival(turns: Sequence[Turn], current: Turn) -> Turn | None:
    """The newest other turn that can claim to be the current one; None if there is no doubt.

    Two conversations under one session id take turns: each was continued after the other had begun. A side branch with the
    line's system text and tools is one, too, once it was continued: nobody continues a title. It may hang at a turn of the line by the
    tokens that all prompts begin with.
    """
    by_id = {turn.id: turn for turn in turns}
    path = _path(current, by_id)
    for turn in sorted(turns, key=lambda turn: -turn.number):
        parent = by_id.get(turn.parent or "")
        continued = parent is not None and not parent.main and _goes_on_from(turn, parent)
        candidate = turn.main or (continued and turn.profile.agent == current.profile.agent)
        if candidate and turn.state is TurnState.ENDED and turn.id not in path:
            own = _path(turn, by_id)
            common = next((ancestor for ancestor in own if ancestor in path), None)
            branch = next((ancestor for ancestor in path.values() if ancestor.parent == common), None)
            beginning = next(ancestor for ancestor in own.values() if ancestor.parent == common)
            if common is not None and not turn.main and beginning.parent_at < path[common].prompt_tokens:
                branch = path[common]
            if branch is not None and turn.number > branch.number and not _is_repeat(beginning, branch):
                return turn
    return None


def _goes_on_from(turn: Turn, parent: Turn) -> bool:
    """Whether a turn has the question and the answer of its parent. A template may render the answer to other tokens."""
    return turn.continues or turn.parent_messages >= parent.parent_messages + _QUESTION_AND_ANSWER


def _is_repeat(turn: Turn, other: Turn) -> bool:
    """Whether a client asked the same again: it goes on with one of the answers."""
    return turn.prompt_digest == other.prompt_digest != ""


def _path(turn: Turn, by_id: dict[str, Turn]) -> dict[str, Turn]:
    """The turn and its ancestors among the known turns, by id, from the turn up."""
    path: dict[str, Turn] = {}
    node: Turn | None = turn
    while node is not None:
        path[node.id] = node
        node = by_id.get(node.parent or "")
    return path
