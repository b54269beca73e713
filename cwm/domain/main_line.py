"""The main line: the turns of a session that are its conversation, apart from titles, summaries and sub-agents.

A session's current turn is always one of its main line. What a turn is, is decided by what its request says: its system
text, its tools, and which messages of the line it carries.
"""

from __future__ import annotations

from collections.abc import Sequence

from cwm.domain.turn import Profile, Turn, TurnState


def joins(turn: Turn, current: Turn | None, *, extends: bool, carries: bool) -> bool:
    """Whether an ended turn goes on with the main line, whose last turn is ``current``.

    ``extends``: the turn's prompt begins with the prompt of ``current``. ``carries``: it has an assistant's message of
    the line. The line begins with the first turn that has tools, else with the longest prompt.
    """
    if current is None:
        return True
    if bool(turn.profile.tools) is not bool(current.profile.tools):
        return bool(turn.profile.tools)
    if extends or carries:
        return True
    if turn.profile != current.profile:
        return False
    return bool(current.profile.tools) or turn.prompt_tokens > current.prompt_tokens


def may_join(asked: Profile, current: Turn | None) -> bool:
    """Whether a turn that is still in flight may go on with the main line."""
    return current is None or asked == current.profile or bool(asked.tools and not current.profile.tools)


def rival(turns: Sequence[Turn], current: Turn) -> Turn | None:
    """The newest other turn that can claim to be the current one; None if there is no doubt.

    Two conversations under one session id take turns: each was continued after the other had begun.
    """
    by_id = {turn.id: turn for turn in turns}
    path = _path(current, by_id)
    for turn in sorted(turns, key=lambda turn: -turn.number):
        if turn.main and turn.state is TurnState.ENDED and turn.id not in path:
            common = next((ancestor for ancestor in _path(turn, by_id) if ancestor in path), None)
            begun = [ancestor.number for ancestor in path.values() if ancestor.parent == common]
            if begun and turn.number > begun[0]:
                return turn
    return None


def _path(turn: Turn, by_id: dict[str, Turn]) -> dict[str, Turn]:
    """The turn and its ancestors among the known turns, by id, from the turn up."""
    path: dict[str, Turn] = {}
    node: Turn | None = turn
    while node is not None:
        path[node.id] = node
        node = by_id.get(node.parent or "")
    return path
