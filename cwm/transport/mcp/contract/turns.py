"""Tools on turns: the log of a session or window, and what was said in a turn."""

from __future__ import annotations

from typing import Annotated

from fastmcp.tools import FunctionTool
from pydantic import Field

from cwm.domain.errors import InvalidParameterError
from cwm.services.turns.history import MAX_TURNS, TurnSource
from cwm.transport.mcp.contract import inputs, render, schemas
from cwm.transport.mcp.contract.tool import tool
from cwm.transport.mcp.mcp_server import CALLER, Caller


async def turn_log(
    session_id: Annotated[
        inputs.SessionId | None, Field(description="Id of a session; give this or window_name")
    ] = None,
    window_name: Annotated[
        inputs.WindowName | None, Field(description="Name of a window; give this or session_id")
    ] = None,
    limit: Annotated[int, Field(ge=1, le=MAX_TURNS, description="Maximum number of turns to return")] = 50,
    before: Annotated[
        int | None, Field(ge=1, description="Only turns before this number: next_before of the previous page")
    ] = None,
    caller: Caller = CALLER,
) -> schemas.TurnLog:
    """List the turns of a session, the newest first: a tree in which nothing is ever overwritten.

    Every request to the model is a turn, also those of a title, a summary or a sub-agent under the same session id.
    A turn leaves its parent at token parent_at: it continues its parent, or branches off when it leaves it before the
    parent's answer. Turns of the conversation itself have line main; current_turn is the last of them, and what
    window_freeze saves. For a window, current_turn is the turn whose context the window is. Counts are in
    tokens; cached_tokens of a turn's prompt_tokens were not computed again.

    Errors: CWM-1001/1002/1003 malformed or missing field; CWM-2001 no such session; CWM-2002 no such window.
    """
    log = await caller.services.history.log(caller.principal, _source(session_id, window_name), limit, before)
    return render.turn_log(log)


async def turn_show(
    turn: Annotated[
        inputs.TurnId | None, Field(description="Id of a turn; give this, session_id or window_name")
    ] = None,
    session_id: Annotated[
        inputs.SessionId | None, Field(description="Id of a session: its current turn is shown")
    ] = None,
    window_name: Annotated[
        inputs.WindowName | None,
        Field(description="Name of a window: the turn that it was frozen at is shown"),
    ] = None,
    include_tokens: Annotated[bool, Field(description="Include the exact token ids of the context")] = False,
    caller: Caller = CALLER,
) -> schemas.TurnShown:
    """Read what was said up to a turn: the messages of its context as the client sent and got them, oldest first.

    Give exactly one of turn, session_id and window_name. The last message is the turn's answer. messages is empty,
    with a warning, where a context was recorded without messages: as token ids, or before CWM kept them.

    Errors: CWM-1001/1002/1003 malformed or missing field; CWM-2001 no such session; CWM-2002 no such window;
    CWM-2007 no such turn, or it has no answer yet.
    """
    source = _source(session_id, window_name, turn)
    shown = await caller.services.history.show(caller.principal, source, tokens=include_tokens)
    return render.turn_shown(shown)


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
    ]
