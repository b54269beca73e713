"""Tools on turns: the log of a session or window, and what was said in a turn."""

from __future__ import annotations

from typing import Annotated, Literal

from fastmcp.tools import FunctionTool
from pydantic import Field

from cwm.domain.errors import InvalidParameterError
from cwm.domain.turn import TurnSource
from cwm.domain.word_search import MAX_CHARS
from cwm.services.turns.reading.history import MAX_TURNS
from cwm.services.turns.reading.search import MAX_FINDINGS
from cwm.transport.mcp.contract import inputs
from cwm.transport.mcp.contract.conversation import session_of
from cwm.transport.mcp.contract.render import turns as render
from cwm.transport.mcp.contract.schemas import turns as schemas
from cwm.transport.mcp.contract.tool import tool
from cwm.transport.mcp.mcp_server import CALLER, Caller


async def turn_log(
    session_id: Annotated[
        inputs.SessionId | None,
        Field(
            description="Id of a session; the conversation that this call comes from if this and window_name are left out"
        ),
    ] = None,
    window_name: Annotated[
        inputs.WindowName | None, Field(description="Name of a window; give this or session_id")
    ] = None,
    limit: Annotated[int, Field(ge=1, le=MAX_TURNS, description="Maximum number of turns to return")] = 50,
    before: Annotated[
        int | None, Field(ge=1, description="Only turns before this number: next_before of the previous page")
    ] = None,
    all_tags: Annotated[
        bool, Field(description="true: no turns, but the tags of all sessions, also of deleted ones")
    ] = False,
    caller: Caller = CALLER,
) -> schemas.TurnLog:
    """List the turns of a session, the newest first: a tree in which nothing is ever overwritten.

    Every request to the model is a turn, also those of a title, a summary or a sub-agent under the same session id.
    A turn leaves its parent at token parent_at: it continues its parent, or branches off when it leaves it before the
    parent's answer. Turns of the conversation itself have line main; current_turn is the last of them, and what
    window_freeze saves. For a window, current_turn is the turn whose context the window is. Counts are in
    tokens; cached_tokens of a turn's prompt_tokens were not computed again, missed says why that is less than what it shares
    with its parent. tags are the names that turn_tag gave to
    turns of the session.

    Errors: CWM-1001/1002/1003 malformed or missing field; CWM-2001 no such session; CWM-2002 no such window.
    """
    if all_tags:
        tags = await caller.services.history.tags(caller.principal)
        return {
            "success": True,
            "turns": [],
            "tags": [render.turn_tag(tag) for tag in tags],
            "has_more": False,
        }
    if window_name is None:
        session_id = await session_of(caller, session_id)
    log = await caller.services.history.log(caller.principal, _source(session_id, window_name), limit, before)
    return render.turn_log(log)


async def turn_show(
    turn: Annotated[
        inputs.TurnId | None,
        Field(description="Id of a turn, or tag:NAME; give this, session_id or window_name"),
    ] = None,
    session_id: Annotated[
        inputs.SessionId | None, Field(description="Id of a session: its current turn is shown")
    ] = None,
    window_name: Annotated[
        inputs.WindowName | None,
        Field(description="Name of a window: the turn that it was frozen at is shown"),
    ] = None,
    include_tokens: Annotated[bool, Field(description="Include the exact token ids of the context")] = False,
    message_format: Annotated[
        Literal["openai", "anthropic"],
        Field(description="The API whose format the messages have; anthropic: the system text is in system"),
    ] = "openai",
    caller: Caller = CALLER,
) -> schemas.TurnShown:
    """Read what was said up to a turn: the messages of its context as the client sent and got them, oldest first.

    Give at most one of turn, session_id and window_name; without any it is the conversation that the call comes from. The last message is the turn's answer. messages is empty,
    with a warning, where a context was recorded without messages: as token ids, or before CWM kept them. Where they
    are not kept by choice, the warning says so. Of more than 16 MB the oldest are replaced by how large they are.

    Errors: CWM-1001/1002/1003 malformed or missing field; CWM-2001 no such session; CWM-2002 no such window;
    CWM-2007 no such turn, or it has no answer yet.
    """
    if turn is None and window_name is None:
        session_id = await session_of(caller, session_id)
    source = _source(session_id, window_name, turn)
    content = await caller.services.history.show(caller.principal, source, tokens=include_tokens)
    return render.turn_shown(content, message_format)


async def turn_search(
    query: Annotated[
        str,
        Field(min_length=1, max_length=MAX_CHARS, description="Up to 8 words, which a message must all have"),
    ],
    session_id: Annotated[
        inputs.SessionId | None,
        Field(
            description="Id of a session; the conversation that this call comes from if this, window_name and all_sessions are left out"
        ),
    ] = None,
    window_name: Annotated[
        inputs.WindowName | None, Field(description="Search only the context of this window")
    ] = None,
    limit: Annotated[
        int, Field(ge=1, le=MAX_FINDINGS, description="Maximum number of messages to return")
    ] = 20,
    cursor: Annotated[str | None, Field(description="next_cursor of the previous page")] = None,
    include_messages: Annotated[
        bool, Field(description="true: with the whole messages, word for word, not only excerpts")
    ] = False,
    all_sessions: Annotated[
        bool, Field(description="true: search all sessions, if neither session_id nor window_name is given")
    ] = False,
    caller: Caller = CALLER,
) -> schemas.TurnsFound:
    """Search what was said in a conversation, or in all of them: messages that have all words, in any case.

    Use it to recall what you do not see any more: it finds everything that was said in the session, on all branches, also what
    a compaction left out. The newest turn comes first; of all_sessions, the newest session. turn_show reads more around a message.
    A call reads about 20,000 messages at most: with next_cursor there is more to search, also when results is empty. Where
    messages are not kept, nothing is found.

    Errors: CWM-1001/1002/1003 malformed field; CWM-2001 no such session; CWM-2002 no such window.
    """
    if window_name is None and not (all_sessions and session_id is None):
        session_id = await session_of(caller, session_id)
    of = None if session_id is window_name is None else _source(session_id, window_name)
    page = await caller.services.search(caller.principal, query, of, limit, cursor, whole=include_messages)
    return render.turns_found(page)


async def turn_diff(
    left: Annotated[str, Field(description="session:ID, window:NAME, turn:ID or tag:NAME")],
    right: Annotated[str, Field(description="What to compare it with, in the same form")],
    caller: Caller = CALLER,
) -> schemas.TurnDiff:
    """Compare two contexts: how far they are equal, what comes next in each, and what a switch would cost.

    common_tokens and common_messages are equal from the beginning; left_message and right_message are the first that
    differ. Going on from right after left, the engine reuses reused_tokens (whole blocks) and computes
    computed_tokens. thaw_ms predicts a thaw of right from the speeds measured so far; it is left out if nothing was measured.

    Errors: CWM-1001/1002/1003 malformed field; CWM-2001 no such session; CWM-2002 no such window; CWM-2007 no
    such turn.
    """
    sources = TurnSource.parse(left, "left"), TurnSource.parse(right, "right")
    return render.turn_diff(await caller.services.compare(caller.principal, *sources))


async def turn_left_out(
    turn: Annotated[
        inputs.TurnId | None, Field(description="A turn with compacts in turn_log; give this or session_id")
    ] = None,
    session_id: Annotated[
        inputs.SessionId | None, Field(description="Id of a session: its newest compaction is looked at")
    ] = None,
    caller: Caller = CALLER,
) -> schemas.LeftOut:
    """List what a summary left out: the facts of a conversation that the turn after its compaction no longer has.

    Use it after a client compacted its history. Facts are names, numbers, paths, URLs, identifiers, quotations, and
    instructions of the user, found by comparing texts, without a model. message is the position in the
    messages of turn_show of before, which has all of it word for word; turn_search finds it by its words. turn_revert to before, or to
    its tag, undoes the compaction: what comes next goes on from there.

    Errors: CWM-1001/1003 malformed or missing field; CWM-2001 no such session; CWM-2007 no such turn, or no
    compaction.
    """
    if turn is None:
        session_id = await session_of(caller, session_id)
    result = await caller.services.compactions.left_out(caller.principal, _source(session_id, None, turn))
    return render.left_out(result)


async def turn_branch(
    turn: Annotated[
        inputs.TurnId | None,
        Field(
            description="Id of the turn to go on from, or tag:NAME; the current one of the conversation that this call comes from if left out"
        ),
    ] = None,
    new_session_id: Annotated[
        inputs.SessionId | None, Field(description="Id for the new session; generated if left out")
    ] = None,
    visibility: Annotated[
        inputs.Visibility | None,
        Field(
            description="Who may see it: private (only you), workspace:<name> (its members) or tenant; the gateway's default, but no more than see the turn, if left out"
        ),
    ] = None,
    caller: Caller = CALLER,
) -> schemas.TurnMoved:
    """Open a new session at any turn: it has the turn's exact context and messages, and the old session stays.

    Nothing is asked of the engine. The next turn reuses the KV that the engine and its cache still have; freeze a turn
    with window_freeze to keep it. Branching does not undo what tools did.

    Errors: CWM-1001/1003 malformed field; CWM-2007 no such turn; CWM-3001 new_session_id is taken; CWM-4003 what you
    may store is used up.
    """
    if turn is None:
        own = TurnSource(session_id=await session_of(caller, None))
        turn = (await caller.services.history.turn(caller.principal, own)).id
    session = await caller.services.branches.open(caller.principal, turn, new_session_id, visibility)
    return {"success": True, "session_id": session.id, "turn": turn, "token_count": session.token_count}


async def turn_revert(
    turn: Annotated[inputs.TurnId, Field(description="Id of the turn to go back to, or tag:NAME")],
    caller: Caller = CALLER,
) -> schemas.TurnMoved:
    """Make an earlier turn, or one of a branch, the current turn of its session.

    The turns after it stay in the tree. session_generate and CWM-Continue go on from it; a client that sends the whole
    conversation again moves the session to where that conversation is. Going back does not undo what tools did.

    Errors: CWM-1003 malformed field; CWM-2007 no such turn; CWM-3002 its session is frozen or expired.
    """
    session = await caller.services.branches.revert(caller.principal, turn)
    return {"success": True, "session_id": session.id, "turn": turn, "token_count": session.token_count}


async def turn_delete(
    turn: Annotated[inputs.TurnId, Field(description="Id of the first turn to delete")],
    caller: Caller = CALLER,
) -> schemas.TurnsDeleted:
    """Delete a turn and every turn that came from it, with what was said in them.

    Branches that were opened elsewhere with turn_branch stay.

    Errors: CWM-1003 malformed field; CWM-2007 no such turn; CWM-3002 a turn of the session is in flight (retryable);
    CWM-3004 one of them is the current turn, in a window or has a tag: revert, or delete the window or tag, first.
    """
    return {"success": True, "deleted_turns": await caller.services.branches.remove(caller.principal, turn)}


async def turn_tag(
    tag: Annotated[inputs.TurnTag, Field(description="Name of the tag")],
    turn: Annotated[
        inputs.TurnId | None, Field(description="Id of the turn to name, or tag:NAME of another tag")
    ] = None,
    action: Annotated[
        Literal["create", "move", "delete"],
        Field(description="move: also if the tag names another turn. delete: remove the tag"),
    ] = "create",
    caller: Caller = CALLER,
) -> schemas.TurnTagged:
    """Name a turn, at once and without the engine, so that it can be gone back to: tag:NAME stands wherever a turn is named.

    A tag keeps its turn and those before it, also when the session is deleted, but no KV: freeze the turn with window_freeze for that. turn_log
    lists tags. Delete answers with the tag that was removed.

    Errors: CWM-1003 malformed or missing field; CWM-2007 no such turn, or no such tag; CWM-3009 the tag names another
    turn.
    """
    if (turn is None) is not (action == "delete"):
        raise InvalidParameterError("Give turn, except to delete the tag.", field="turn")
    branches = caller.services.branches
    tagged = (
        await branches.untag(caller.principal, tag)
        if turn is None
        else await branches.tag(caller.principal, tag, turn, move=action == "move")
    )
    return {"success": True, **render.turn_tag(tagged)}


def _source(session_id: str | None, window_name: str | None, turn: str | None = None) -> TurnSource:
    if sum(each is not None for each in (session_id, window_name, turn)) != 1:
        raise InvalidParameterError(
            "Give exactly one of the ids and names.", field="session_id", fields=["session_id", "window_name"]
        )
    return TurnSource(session_id, window_name, turn)


def turn_tools() -> list[FunctionTool]:
    return [
        tool(turn_log, "List the turns of a session", schemas.TurnLog, read_only=True),
        tool(turn_show, "Read what was said", schemas.TurnShown, read_only=True),
        tool(turn_search, "Search what was said", schemas.TurnsFound, read_only=True),
        tool(turn_diff, "Compare two contexts", schemas.TurnDiff, read_only=True),
        tool(turn_left_out, "See what a summary left out", schemas.LeftOut, read_only=True),
        tool(turn_branch, "Open a session at a turn", schemas.TurnMoved),
        tool(turn_revert, "Go back to a turn", schemas.TurnMoved, idempotent=True),
        tool(turn_tag, "Name a turn", schemas.TurnTagged, destructive=True, idempotent=True),
        tool(turn_delete, "Delete a branch", schemas.TurnsDeleted, destructive=True, idempotent=True),
    ]
