"""Tools on windows: freeze, thaw, list, status, clone, delete."""

from __future__ import annotations

from typing import Annotated

from fastmcp.tools import FunctionTool
from pydantic import Field

from cwm.domain.errors import InvalidParameterError
from cwm.domain.names import MAX_TAGS
from cwm.domain.window import DEFAULT_PAGE, Retention, WindowQuery, WindowSort
from cwm.services.windows.browse import MAX_PAGE
from cwm.transport.mcp.contract import inputs
from cwm.transport.mcp.contract.conversation import session_of
from cwm.transport.mcp.contract.render import status as render_status
from cwm.transport.mcp.contract.render import windows as render
from cwm.transport.mcp.contract.schemas import windows as schemas
from cwm.transport.mcp.contract.schemas.status import Status
from cwm.transport.mcp.contract.schemas.visibility import Shared
from cwm.transport.mcp.contract.tool import tool
from cwm.transport.mcp.mcp_server import CALLER, Caller


async def window_freeze(
    *,
    session_id: Annotated[
        inputs.SessionId | None,
        Field(
            description="Id of the session to freeze; the conversation that this call comes from if left out"
        ),
    ] = None,
    window_name: Annotated[
        inputs.WindowName, Field(description="Name of the new window; must not be in use")
    ],
    description: Annotated[
        inputs.Description | None,
        Field(description="What this context contains, so that it can be found again"),
    ] = None,
    tags: Annotated[
        inputs.Tags | None, Field(description="Tags that window_list can filter by; letters, digits, _ and -")
    ] = None,
    wait: Annotated[
        bool,
        Field(
            description="true: answer once the blocks are proven to be stored. "
            "false: answer at once; window_status shows durability durable when they are"
        ),
    ] = True,
    canary: Annotated[
        bool,
        Field(
            description="Record a canary, looks at the KV that thaws compare theirs with; costs a few tokens of computation"
        ),
    ] = True,
    retention: Annotated[
        inputs.Retention,
        Field(
            description="guaranteed: blocks are pinned, count against the quota and are stored again if lost. "
            "best_effort: blocks may be lost; the tokens never are"
        ),
    ] = "guaranteed",
    ttl_seconds: Annotated[
        inputs.TtlSeconds | None,
        Field(description="Seconds after which the window is deleted; never if left out"),
    ] = None,
    turn: Annotated[
        inputs.TurnId | None,
        Field(
            description="A turn from turn_log, or tag:NAME, to save instead of the current one; the session goes on"
        ),
    ] = None,
    keep_session: Annotated[
        bool | None,
        Field(
            description="true: the session goes on. false: it becomes frozen and takes no more turns. Left out: false for a session_id, true where it is left out"
        ),
    ] = None,
    visibility: Annotated[
        inputs.Visibility | None,
        Field(
            description="Who may see the window: private (only you), workspace:<name> (its members) or tenant; the gateway's default if left out"
        ),
    ] = None,
    caller: Caller = CALLER,
) -> schemas.Frozen:
    """Save a session's whole context, token for token, as a named window that can be continued later.

    Use it before a context would be lost or overwritten, at a point worth branching from, or to hand a
    context to another agent, or, without session_id, to keep this very conversation. The session takes no more turns afterwards, unless you keep it or name a turn: thaw the
    window to continue, as often as you like. A window never changes. Titles, summaries and sub-agents under the same
    session id are not saved: the context is that of the conversation's last turn. A turn in flight that continues it is waited for.

    CWM saves the exact tokens the model has seen, and the engine's KV cache for them in blocks. Only full
    blocks are stored; a thaw computes the tokens after the last full block again. Sizes are in bytes, times
    in milliseconds.

    Errors: CWM-1001/1002/1003 malformed session_id, window_name or other field; CWM-1001 also without session_id, where nothing says which conversation the call comes from; CWM-1003 also for a session that
    holds two conversations: name one of context.turns as turn; CWM-2001 no such session; CWM-2007 no such turn;
    CWM-3002 session is frozen or empty, or a turn stays in flight (retryable); CWM-3003 name is taken;
    CWM-4001 blocks could not be stored, the session stays as it was (retryable); CWM-4003 the tenant's quota
    has no room for the guarantee, the session stays as it was; CWM-5001/6001 engine not reachable or too slow
    (retryable).
    """
    result = await caller.services.freeze(
        caller.principal,
        await session_of(caller, session_id),
        window_name,
        description or "",
        tags,
        wait=wait,
        canary=canary,
        retention=Retention(retention),
        ttl_seconds=ttl_seconds,
        turn_id=turn,
        keep_session=session_id is None if keep_session is None else keep_session,
        visibility=visibility,
    )
    return render.frozen(result)


async def window_thaw(
    window_name: Annotated[inputs.WindowName, Field(description="Name of the window to restore")],
    new_session_id: Annotated[
        inputs.SessionId | None, Field(description="Id for the new session; generated if left out")
    ] = None,
    continuation_prompt: Annotated[
        inputs.Continuation | None, Field(description="A user message to continue with at once")
    ] = None,
    accept_template: Annotated[
        bool, Field(description="Thaw even if the model's chat template has changed since the freeze")
    ] = False,
    verify: Annotated[
        bool,
        Field(description="Compare the restored KV with the window's canary; costs computing a few tokens"),
    ] = True,
    visibility: Annotated[
        inputs.Visibility | None,
        Field(
            description="Who may see the new session: private (only you), workspace:<name> (its members) or tenant; the gateway's default, but no more than see the window, if left out"
        ),
    ] = None,
    as_session: Annotated[
        inputs.SessionId | None,
        Field(
            description="Id of a session of yours that goes on from the window under its own id, instead of a new one; all its turns stay"
        ),
    ] = None,
    caller: Caller = CALLER,
) -> schemas.Thawed:
    """Continue from a window: opens a new session that holds its exact context.

    The engine loads the KV cache instead of computing it, so the first answer comes many times sooner than
    from a prompt of the same length. The window stays; thaw it again for another branch. Continue the
    returned session_id with session_generate, or over the OpenAI-compatible API: with only the new messages and the
    header CWM-Continue: session:<session_id>, or with the whole conversation and CWM-Session-Id. With continuation_prompt, the model's answer to it is in continuation; if that turn fails,
    the new session is deleted again, and the error's context.deleted_session names it. With as_session a client goes on under
    the id that it has: what it sends next extends the window.

    receipt reports what was loaded, from which tier, and what was computed again. partial is true, with a
    warning, when blocks were lost: the context is still complete. verification says whether the restored KV is
    what was frozen, and receipt.verification what was compared. KV that the context computed afresh proves wrong (mismatch) is
    deleted; then, and where nothing can be told (undecided), the session goes on from computed KV. Counts are in tokens, times in milliseconds.

    Errors: CWM-1001/1002/1003 malformed new_session_id, window_name or other field; CWM-2002 no such window;
    CWM-3001 new_session_id is taken, or as_session is somebody else's; CWM-3005 the model's tokenizer or chat template is not the window's;
    CWM-4002/4004 the stored tokens cannot be read or are damaged;
    CWM-5001/5002/6001 engine not reachable, without the window's model, or too slow: the window is
    untouched, try again (retryable).
    """
    if as_session is not None:
        if new_session_id is not None or continuation_prompt is not None or visibility is not None:
            raise InvalidParameterError(
                "as_session goes without new_session_id, continuation_prompt and visibility.",
                field="as_session",
            )
        resumed = await caller.services.resume(
            caller.principal, window_name, as_session, accept_template=accept_template, verify=verify
        )
        return render.thawed(resumed)
    result = await caller.services.thaw(
        caller.principal,
        window_name,
        new_session_id,
        continuation_prompt,
        accept_template=accept_template,
        verify=verify,
        visibility=visibility,
    )
    return render.thawed(result)


async def window_list(
    tags: Annotated[
        inputs.TagWords | None, Field(description="Only windows that have all of these tags")
    ] = None,
    model: Annotated[str | None, Field(description="Only windows of this model")] = None,
    created_after: Annotated[
        inputs.Moment | None, Field(description="Only windows created after this time (RFC 3339)")
    ] = None,
    created_before: Annotated[
        inputs.Moment | None, Field(description="Only windows created before this time (RFC 3339)")
    ] = None,
    sort_by: Annotated[inputs.SortBy, Field(description="Field to sort by")] = "created_at",
    sort_order: Annotated[inputs.SortOrder, Field(description="Direction")] = "desc",
    limit: Annotated[
        int, Field(ge=1, le=MAX_PAGE, description="Maximum number of windows to return")
    ] = DEFAULT_PAGE,
    offset: Annotated[int, Field(ge=0, description="Number of matching windows to skip")] = 0,
    search: Annotated[
        str | None, Field(description="Only windows with this text in name or description, ignoring case")
    ] = None,
    cursor: Annotated[
        str | None,
        Field(description="next_cursor of the previous page; only limit may differ from that call"),
    ] = None,
    visibility: Annotated[
        inputs.Visibility | None,
        Field(description="Only windows with this visibility: private (yours), workspace:<name> or tenant"),
    ] = None,
    caller: Caller = CALLER,
) -> schemas.WindowPage:
    """Find saved windows: filter, search, sort and page through them.

    Use it to see what can be thawed: your windows, those of your workspaces, and those of the whole tenant. A window must match every filter. While has_more is true, call again
    with next_cursor as cursor: no window is skipped or listed twice, however many are added or deleted
    meanwhile. offset works too, but is slower the larger it is. total counts all matches; where there are too
    many to count, total_is_at_least is true and there are at least total. Sizes are in bytes.

    Errors: CWM-1003 malformed field, or a cursor that has expired or is from a different query.
    """
    query = WindowQuery(
        # No window has more than MAX_TAGS tags: one more than that matches no window, as the whole list would.
        tags=tuple(dict.fromkeys(tags or ()))[: MAX_TAGS + 1],
        model=model,
        created_after=created_after,
        created_before=created_before,
        sort_by=WindowSort(sort_by),
        descending=sort_order == "desc",
        limit=limit,
        offset=offset,
        search=search,
    )
    return render.window_page(
        await caller.services.browse.windows(caller.principal, query, cursor, visibility)
    )


async def window_status(
    session_id: Annotated[
        str | None,
        Field(
            description="Id of the session to look at; the conversation that this call comes from if this and window_name are left out"
        ),
    ] = None,
    window_name: Annotated[
        str | None, Field(description="Name of the window to look at; give this or session_id")
    ] = None,
    include_blocks: Annotated[bool, Field(description="Include every block: hash, bytes, tiers")] = False,
    caller: Caller = CALLER,
) -> Status:
    """Look at one window or one session: state, size, and where its KV cache is now.

    Without session_id and window_name it is the conversation that the call comes from. A session that can take turns is active or thawed. The
    state of a window is always frozen; its durability says whether its blocks are proven to be stored
    (durable), still being stored (pending), or could not be stored (failed: failure says why, and the window
    can still be thawed). kv_cache.hit_rate is the share (0-1) of the blocks that some tier holds now; it is
    left out when the cache does not answer. Sizes are in bytes.

    Errors: CWM-1001/1002 malformed id or name; CWM-1003 both given; CWM-1001 also for neither, where nothing says which conversation the call comes from; CWM-2001 no such session;
    CWM-2002 no such window.
    """
    browse = caller.services.browse
    if window_name is None:
        session = await browse.session(caller.principal, await session_of(caller, session_id))
        return render_status.session_status(session, include_blocks=include_blocks)
    if session_id is None:
        window = await browse.window(caller.principal, window_name)
        return render_status.window_status(window, include_blocks=include_blocks)
    raise InvalidParameterError(
        "Give session_id or window_name, not both.",
        field="session_id",
        fields=["session_id", "window_name"],
    )


async def window_clone(
    source_window: Annotated[inputs.WindowName, Field(description="Name of the window to branch from")],
    target_window: Annotated[
        inputs.WindowName, Field(description="Name of the new window; must not be in use")
    ],
    description: Annotated[inputs.Description | None, Field(description="What this branch is for")] = None,
    tags: Annotated[
        inputs.TagWords | None, Field(description="Tags of the clone; those of the source if left out")
    ] = None,
    retention: Annotated[
        inputs.Retention | None, Field(description="guaranteed or best_effort; the source's if left out")
    ] = None,
    ttl_seconds: Annotated[
        inputs.TtlSeconds | None,
        Field(description="Seconds after which the clone is deleted; never if left out"),
    ] = None,
    visibility: Annotated[
        inputs.Visibility | None,
        Field(
            description="Who may see the clone: private (only you), workspace:<name> (its members) or tenant; the gateway's default, but no more than see the source, if left out"
        ),
    ] = None,
    caller: Caller = CALLER,
) -> schemas.Cloned:
    """Give a window a second name, to keep or branch from on its own.

    Nothing is copied: both windows share every block, and a block is deleted only with the last window that
    refers to it. To try several continuations, thaw the same window several times; clone it when a branch
    needs its own name, description or lifetime.

    Errors: CWM-1002/1003 malformed name or other field; CWM-2002 no such source; CWM-3003 target name is
    taken; CWM-4002 the source is still being stored (retryable); CWM-4003 the tenant's quota has no
    room for the guarantee; CWM-5001 the cache cannot be reached (retryable).
    """
    clone = await caller.services.clone(
        caller.principal,
        source_window,
        target_window,
        description,
        tags,
        retention=None if retention is None else Retention(retention),
        ttl_seconds=ttl_seconds,
        visibility=visibility,
    )
    return render.cloned(clone, source_window)


async def window_share(
    window_name: Annotated[inputs.WindowName, Field(description="Name of a window of yours")],
    visibility: Annotated[
        inputs.Visibility, Field(description="private (only you), workspace:<name> (its members) or tenant")
    ],
    caller: Caller = CALLER,
) -> Shared:
    """Say who may see a window, thaw it, clone it and delete it. Sessions thawed from it and clones stay as they are.

    For everybody else the window is not there; only its name stays taken.

    Errors: CWM-1002/1003 malformed field, or a workspace that you are no member of; CWM-2002 no such window;
    CWM-9002 it is not yours.
    """
    await caller.services.share.window(caller.principal, window_name, visibility)
    return {"success": True, "visibility": visibility}


async def window_rename(
    window_name: Annotated[inputs.WindowName, Field(description="Name of the window")],
    new_name: Annotated[inputs.WindowName, Field(description="Its new name; must not be in use")],
    caller: Caller = CALLER,
) -> schemas.Renamed:
    """Give a window another name. Its blocks stay where they are, and what came from it says the new name.

    An automatic window that gets a name of its own is not deleted for newer ones any more.

    Errors: CWM-1002 malformed name; CWM-2002 no such window; CWM-3003 new_name is taken; CWM-4002 it is being
    stored or thawed (retryable).
    """
    window = await caller.services.rename(caller.principal, window_name, new_name)
    return {
        "success": True,
        "window_name": window.name,
        "session_id": window.session_id,
        "token_count": window.token_count,
    }


async def window_delete(
    window_name: Annotated[inputs.WindowName, Field(description="Name of the window to delete")],
    force: Annotated[
        bool, Field(description="Delete even if other windows or live sessions came from it")
    ] = False,
    delete_blocks: Annotated[
        bool, Field(description="Delete its blocks too, except those that something else refers to")
    ] = True,
    caller: Caller = CALLER,
) -> schemas.Deleted:
    """Delete a window for ever: its record, its tokens, and the blocks that nothing else refers to.

    The session that was frozen stays, as session_id; once its last window is deleted, its session_state is
    expired: freeze it again, or delete it with session_delete.

    It is refused while other windows descend from this one or live sessions were thawed from it; the error's
    context names them. With force the window is deleted anyway, and they keep working. blocks_deleted and
    space_freed_bytes count only blocks that nothing else uses.

    Errors: CWM-1002/1003 malformed field; CWM-2002 no such window; CWM-3004 in use, see context.windows and
    context.sessions; CWM-4002 it is still being stored (retryable); CWM-5001 the cache cannot be
    reached, nothing was deleted (retryable).
    """
    result = await caller.services.delete(
        caller.principal, window_name, force=force, delete_blocks=delete_blocks
    )
    return render.deleted(result)


def window_tools() -> list[FunctionTool]:
    return [
        tool(window_freeze, "Freeze a session", schemas.Frozen),
        tool(window_thaw, "Thaw a window", schemas.Thawed),
        tool(window_list, "List windows", schemas.WindowPage, read_only=True),
        tool(window_status, "Look at a window or session", Status, read_only=True),
        tool(window_clone, "Clone a window", schemas.Cloned),
        tool(window_share, "Say who may see a window", Shared, idempotent=True),
        tool(window_rename, "Rename a window", schemas.Renamed),
        tool(window_delete, "Delete a window", schemas.Deleted, destructive=True, idempotent=True),
    ]
