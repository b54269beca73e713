"""Tools on sessions: create, generate, list."""

from __future__ import annotations

from typing import Annotated

from fastmcp import Context
from fastmcp.tools import FunctionTool
from pydantic import Field

from cwm.domain.errors import CwmError
from cwm.domain.session import SessionQuery, SessionState
from cwm.services.turns.sending.generate import TurnInput
from cwm.services.windows.browse import MAX_PAGE
from cwm.transport.mcp.contract import inputs
from cwm.transport.mcp.contract.progress import Progress
from cwm.transport.mcp.contract.render import sessions as render
from cwm.transport.mcp.contract.schemas import sessions as schemas
from cwm.transport.mcp.contract.schemas.visibility import Shared
from cwm.transport.mcp.contract.tool import tool
from cwm.transport.mcp.mcp_server import CALLER, Caller


async def session_create(
    session_id: Annotated[
        inputs.SessionId | None, Field(description="Id of the new session; generated if left out")
    ] = None,
    model: Annotated[
        inputs.Model | None, Field(description="A model that the engine serves; the first one if left out")
    ] = None,
    metadata: Annotated[
        inputs.Metadata | None,
        Field(description="Any data to store with the session, at most 16 KiB of JSON"),
    ] = None,
    visibility: Annotated[
        inputs.Visibility | None,
        Field(
            description="Who may see and continue it: private (only you), workspace:<name> (its members) or tenant; the gateway's default if left out"
        ),
    ] = None,
    caller: Caller = CALLER,
) -> schemas.SessionCreated:
    """Open an empty session: a conversation with the model whose exact tokens CWM keeps.

    Take turns in it with session_generate and save it with window_freeze. To continue from a window, use
    window_thaw instead, which opens a session of its own.

    Errors: CWM-1001 malformed session_id; CWM-1003 other malformed field, or a model that is not served;
    CWM-3001 id is taken; CWM-5001/6001 engine not reachable or too slow (retryable).
    """
    session = await caller.services.open_session(caller.principal, session_id, model, metadata, visibility)
    return render.session_created(session)


async def session_generate(
    context: Context,
    session_id: Annotated[inputs.SessionId, Field(description="Id of an active or thawed session")],
    messages: Annotated[
        inputs.Messages | None,
        Field(description="New messages only, usually one user message; CWM has the earlier ones"),
    ] = None,
    text: Annotated[
        str | None, Field(description="Raw text to append instead, without the model's chat template")
    ] = None,
    max_tokens: Annotated[
        int, Field(ge=1, le=inputs.MAX_NEW_TOKENS, description="Maximum number of tokens to generate")
    ] = 256,
    temperature: Annotated[
        inputs.Temperature | None,
        Field(description="Sampling temperature; 0 always takes the likeliest token"),
    ] = None,
    top_p: Annotated[
        inputs.TopP | None,
        Field(description="Sample only from the likeliest tokens that together have this probability"),
    ] = None,
    seed: Annotated[inputs.Seed | None, Field(description="Makes sampling repeatable")] = None,
    stop: Annotated[inputs.Stop | None, Field(description="Stop before the first of these texts")] = None,
    tools: Annotated[
        inputs.ChatTools | None,
        Field(
            description="Tool definitions for the chat template, at most 64 KiB of JSON; those of the first turn apply to all"
        ),
    ] = None,
    caller: Caller = CALLER,
) -> schemas.Generated:
    """Take one turn in a session: append messages (or raw text), let the model answer, keep both.

    CWM sends the earlier context as exactly the tokens it was, so the engine finds it in its cache:
    cached_tokens of the prompt_tokens were not computed again. Turns of one session run one after the other.
    A client that asks for progress receives the text as it is generated: progress counts the new tokens, total
    is max_tokens, message is the new text. A turn that has begun is finished and kept even if the caller
    disconnects. The answer is shorter than max_tokens when the model's context is full (finish_reason length).

    Errors: CWM-1001 malformed session_id; CWM-1003 other malformed field, neither or both of messages and
    text, or a context too long for the model; CWM-2001 no such session; CWM-3002 session is frozen or
    expired, or took another turn or ended while the model answered (this turn is not part of it then); CWM-5001/5002/6001
    engine not reachable, failing or too slow (retryable, unless context.recorded: the turn is kept as far as
    it got; continue from there, do not send it again); CWM-9002 a message contains control tokens of the
    model's chat template.
    """
    options = {"temperature": temperature, "top_p": top_p, "seed": seed, "stop": stop}
    turn = TurnInput(
        messages=messages or (),
        text=text,
        max_tokens=max_tokens,
        sampling={name: value for name, value in options.items() if value is not None},
        template_options={"tools": tools} if tools else {},
    )
    progress = Progress(context, max_tokens)
    async with progress.notifications():
        try:
            result = await caller.services.generate(caller.principal, session_id, turn, progress)
        except CwmError as failed:
            failed.tell_recorded(session_id)
            raise
    return render.generated(result)


async def session_list(
    state_filter: Annotated[
        inputs.StateFilter | None, Field(description="Only sessions in this state")
    ] = None,
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="Maximum number of sessions to return")] = 50,
    cursor: Annotated[
        str | None,
        Field(description="next_cursor of the previous page; only limit may differ from that call"),
    ] = None,
    visibility: Annotated[
        inputs.Visibility | None,
        Field(description="Only sessions with this visibility: private (yours), workspace:<name> or tenant"),
    ] = None,
    caller: Caller = CALLER,
) -> schemas.SessionList:
    """List the sessions that you may see, the newest first. While has_more is true, call again with next_cursor as cursor.

    Use it to find a session to continue or to freeze. active: takes turns. thawed: restored from a window,
    takes turns. frozen: saved as a window; thaw the window to continue. expired: idle for too long, or its last
    window was deleted; takes no turns; freeze it and thaw the window to continue, or delete it.

    Errors: CWM-1003 malformed field, or a cursor that has expired or is from a different query.
    """
    states = None if state_filter is None else frozenset({SessionState(state_filter)})
    query = SessionQuery(states, limit)
    page = await caller.services.browse.sessions(caller.principal, query, cursor, visibility)
    return render.session_list(page)


async def session_delete(
    session_id: Annotated[inputs.SessionId, Field(description="Id of the session to delete")],
    caller: Caller = CALLER,
) -> schemas.SessionDeleted:
    """Delete a session for ever: its tokens, and the blocks that nothing else refers to.

    Windows that were frozen from it stay. A frozen session is deleted after its windows: with the last of them
    it becomes expired.

    Errors: CWM-1001 malformed session_id; CWM-2001 no such session; CWM-3002 session is frozen, or has a
    turn in flight (retryable).
    """
    await caller.services.end_session(caller.principal, session_id)
    return {"success": True, "session_id": session_id}


async def session_unfreeze(
    session_id: Annotated[inputs.SessionId, Field(description="Id of a frozen session")],
    caller: Caller = CALLER,
) -> schemas.SessionUnfrozen:
    """Let a frozen session take turns again, under its own id. Its windows stay as they are.

    Errors: CWM-1001 malformed session_id; CWM-2001 no such session; CWM-3002 session is not frozen.
    """
    session = await caller.services.branches.unfreeze(caller.principal, session_id)
    return {"success": True, "session_id": session.id, "state": "active"}


async def session_merge(
    session_id: Annotated[inputs.SessionId, Field(description="Id of the session that ends")],
    into_session: Annotated[inputs.SessionId, Field(description="Id of the session that gets its turns")],
    caller: Caller = CALLER,
) -> schemas.SessionMerged:
    """Merge two sessions that are one conversation: the turns of session_id become branches of into_session.

    Turns are numbered anew in the order in which they were asked; each tree hangs where its tokens leave the other's. Windows and
    tags move along; the current turn is the one that was asked last, turn_revert chooses another. session_id is free again.
    It cannot be undone, but turn_branch opens a session at any turn.

    Errors: CWM-1001 malformed id; CWM-1003 another owner, visibility, model, cache salt or template options, or the same session; CWM-2001
    no such session; CWM-3002 into_session takes no turns, one changed, or a turn is in flight (retryable);
    CWM-4002 a window is still being stored (retryable).
    """
    session, turns = await caller.services.branches.merge(caller.principal, session_id, into_session)
    return {
        "success": True,
        "session_id": session.id,
        "merged_session": session_id,
        "turn_count": turns,
        "token_count": session.token_count,
    }


async def session_share(
    session_id: Annotated[inputs.SessionId, Field(description="Id of a session of yours")],
    visibility: Annotated[
        inputs.Visibility, Field(description="private (only you), workspace:<name> (its members) or tenant")
    ],
    caller: Caller = CALLER,
) -> Shared:
    """Say who may see a session, read it, go on with it, freeze it and delete it. Its windows stay as they are, but for automatic ones.

    For everybody else the session is not there; only its id stays taken.

    Errors: CWM-1001/1003 malformed field, or a workspace that you are no member of; CWM-2001 no such session;
    CWM-9002 it is not yours.
    """
    await caller.services.share.session(caller.principal, session_id, visibility)
    return {"success": True, "visibility": visibility}


def session_tools() -> list[FunctionTool]:
    return [
        tool(session_create, "Open a session", schemas.SessionCreated),
        tool(session_generate, "Take a turn in a session", schemas.Generated),
        tool(session_list, "List sessions", schemas.SessionList, read_only=True),
        tool(session_unfreeze, "Continue a frozen session", schemas.SessionUnfrozen),
        tool(session_merge, "Merge two sessions", schemas.SessionMerged, destructive=True, idempotent=True),
        tool(session_share, "Say who may see a session", Shared, idempotent=True),
        tool(session_delete, "Delete a session", schemas.SessionDeleted, destructive=True, idempotent=True),
    ]
