"""Tools on shared context, where agents keep what they learned for each other."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastmcp.tools import FunctionTool
from pydantic import Field

from cwm.domain.shared_context import (
    DEFAULT_PRIORITY,
    LABEL_PATTERN,
    MAX_KEY_CHARS,
    MAX_PRIORITY,
    MIN_PRIORITY,
    SCOPE_PATTERN,
    SESSION,
    ContextScope,
    scope_of,
)
from cwm.services.context.requests import Setting
from cwm.services.context.shared_context import MAX_PAGE
from cwm.transport.mcp.context import render as render_context
from cwm.transport.mcp.context import schemas
from cwm.transport.mcp.contract import inputs
from cwm.transport.mcp.contract.tool import tool
from cwm.transport.mcp.mcp_server import CALLER, Caller

Key: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_KEY_CHARS)]
Prefix: TypeAlias = Annotated[str, Field(max_length=MAX_KEY_CHARS)]
Label: TypeAlias = Annotated[str, Field(pattern=LABEL_PATTERN)]
Version: TypeAlias = Annotated[int, Field(ge=0)]
ScopeName: TypeAlias = Annotated[
    str,
    Field(
        pattern=SCOPE_PATTERN,
        description="session: private to you. workspace:<name>: whoever in your tenant uses that name. tenant: your whole tenant",
    ),
]
Handle: TypeAlias = Annotated[
    inputs.AgentSession | None,
    Field(
        description="From agent_session_create: the agent session whose private scope to use; only with scope session"
    ),
]


async def context_set(
    key: Annotated[
        Key,
        Field(
            description="Name of the value, such as files/package.json; group keys with / for context_list"
        ),
    ],
    value: Annotated[Any, Field(description="Any JSON value", json_schema_extra=schemas.ANY_JSON)],
    ttl: Annotated[
        float | None,
        Field(
            ge=0,
            le=inputs.MAX_TTL_SECONDS,
            description="Seconds until the key expires; 0: never. If left out, an hour unless the gateway says otherwise: see expires_at",
        ),
    ] = None,
    priority: Annotated[
        int,
        Field(
            ge=MIN_PRIORITY,
            le=MAX_PRIORITY,
            description="With eviction by priority, a higher priority stays in memory longer; no value is lost either way",
        ),
    ] = DEFAULT_PRIORITY,
    immutable: Annotated[
        bool, Field(description="Refuse every later change and deletion of the key until it expires")
    ] = False,
    if_version: Annotated[
        Version | None,
        Field(description="Write only if the key is still at this version; 0: only if it does not exist"),
    ] = None,
    scope: ScopeName = SESSION,
    agent_session: Handle = None,
    caller: Caller = CALLER,
) -> schemas.ContextSet:
    """Keep a value under a key, for yourself or for other agents.

    Put what was expensive to find out and others will need in a workspace or the tenant. To change a key
    without losing another agent's write, read it, change the value, and write it with the entry.version you
    read as if_version; after CWM-3007, read again and retry. Equal values are stored once.

    Errors: CWM-1003 malformed field, or a value too large; CWM-2004 no such agent session; CWM-3007 the key is
    immutable, or not at if_version (context.current_version has its version); CWM-4001/4002 the shared store
    cannot be reached (retryable); CWM-4003 the tenant's quota is used up.
    """
    context_scope = await _scope(caller, scope, agent_session)
    setting = Setting(key, value, ttl, priority, immutable, if_version)
    entry = await caller.services.shared_context.set(caller.principal, context_scope, setting)
    return render_context.written(context_scope, entry)


async def context_get(
    key: Annotated[Key, Field(description="The key to read")],
    version: Annotated[
        Version | None, Field(description="Read the key as it was at this version of the scope")
    ] = None,
    snapshot: Annotated[
        Label | None, Field(description="Read the key as it was when this snapshot was taken")
    ] = None,
    scope: ScopeName = SESSION,
    agent_session: Handle = None,
    caller: Caller = CALLER,
) -> schemas.ContextValue:
    """Read a key: its value now, whichever agent wrote it, or at an earlier version or snapshot.

    Look here before you read, search or compute what another agent may have found out already. For a key that
    does not exist or has expired, found is false. Reads with the same snapshot all see one consistent state,
    whatever others write meanwhile.

    Errors: CWM-1003 malformed field, a version that is no longer kept, or both version and snapshot;
    CWM-2004 no such agent session; CWM-2006 no such snapshot; CWM-4001/4002 the shared store cannot be reached
    (retryable); CWM-4004 the value was damaged and has been dropped.
    """
    context_scope = await _scope(caller, scope, agent_session)
    reading = await caller.services.shared_context.get(context_scope, key, version, snapshot)
    return render_context.value(context_scope, key, reading)


async def context_delete(
    key: Annotated[Key, Field(description="The key to delete")],
    if_version: Annotated[
        Version | None, Field(description="Delete only if the key is still at this version")
    ] = None,
    scope: ScopeName = SESSION,
    agent_session: Handle = None,
    caller: Caller = CALLER,
) -> schemas.ContextDeleted:
    """Delete a key; snapshots and past versions still have it.

    Errors: CWM-1003 malformed field; CWM-2004 no such agent session; CWM-3007 the key is immutable, or not at
    if_version; CWM-4001/4002 the shared store cannot be reached (retryable).
    """
    context_scope = await _scope(caller, scope, agent_session)
    entry = await caller.services.shared_context.delete(caller.principal, context_scope, key, if_version)
    return render_context.deleted(context_scope, key, entry)


async def context_list(
    prefix: Annotated[Prefix, Field(description="Only keys that begin with this")] = "",
    after: Annotated[
        Key | None, Field(description="Only keys after this one: next_after of the previous page")
    ] = None,
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="Maximum number of keys to return")] = 100,
    snapshot: Annotated[
        Label | None, Field(description="List the scope as it was when this snapshot was taken")
    ] = None,
    scope: ScopeName = SESSION,
    agent_session: Handle = None,
    caller: Caller = CALLER,
) -> schemas.ContextKeys:
    """List keys with their sizes and versions, without their values.

    Pages are ordered by key, so nothing is listed twice; to see the same state on all pages, list a snapshot.

    Errors: CWM-1003 malformed field; CWM-2004 no such agent session; CWM-2006 no such snapshot; CWM-4002 the
    shared store cannot be reached (retryable).
    """
    context_scope = await _scope(caller, scope, agent_session)
    page = await caller.services.shared_context.list(context_scope, prefix, after, limit, snapshot)
    return render_context.keys(context_scope, page)


async def context_snapshot(
    label: Annotated[Label, Field(description="Name of the snapshot; must not be in use in the scope")],
    scope: ScopeName = SESSION,
    agent_session: Handle = None,
    caller: Caller = CALLER,
) -> schemas.ContextSnapshotTaken:
    """Name the current state of a scope, to read or restore it later. It costs nothing, however large the scope.

    The oldest snapshots of a scope are dropped when there are too many.

    Errors: CWM-1003 malformed field; CWM-2004 no such agent session; CWM-3007 the label is in use;
    CWM-4001 the shared store cannot be reached (retryable).
    """
    context_scope = await _scope(caller, scope, agent_session)
    new_snapshot, dropped = await caller.services.shared_context.snapshot(
        caller.principal, context_scope, label
    )
    return {
        "success": True,
        "scope": context_scope.name,
        "snapshot": render_context.snapshot(new_snapshot),
        "dropped": list(dropped),
    }


async def context_restore(
    snapshot: Annotated[Label, Field(description="Label of the snapshot")],
    scope: ScopeName = SESSION,
    agent_session: Handle = None,
    caller: Caller = CALLER,
) -> schemas.ContextRestored:
    """Set every key of a scope back to its state in a snapshot: all in one new version, or none.

    Keys that were created since are deleted. The versions in between stay readable. Keys that have expired since
    stay gone.

    Errors: CWM-1003 malformed field; CWM-2004 no such agent session; CWM-2006 no such snapshot; CWM-3007 it
    would change an immutable key (context.key), or others keep writing; CWM-4001/4002 the shared store cannot
    be reached (retryable).
    """
    context_scope = await _scope(caller, scope, agent_session)
    restored = await caller.services.shared_context.restore(caller.principal, context_scope, snapshot)
    return render_context.restored(context_scope, restored)


async def context_stats(
    scope: ScopeName = SESSION,
    agent_session: Handle = None,
    caller: Caller = CALLER,
) -> schemas.ContextStats:
    """See how much a scope contains, which snapshots it has, and how much the tenant uses of the shared store.

    With the scope admin, memory tells how much of this gateway's memory all tenants use, and how many reads it answers.

    Errors: CWM-1003 malformed field; CWM-2004 no such agent session; CWM-4002 the shared store cannot be
    reached (retryable).
    """
    context_scope = await _scope(caller, scope, agent_session)
    return render_context.stats(
        context_scope,
        await caller.services.shared_context.stats(context_scope),
        memory=caller.services.operators.have(caller.principal),
    )


def context_tools() -> list[FunctionTool]:
    return [
        tool(context_set, "Keep a value in shared context", schemas.ContextSet),
        tool(context_get, "Read shared context", schemas.ContextValue, read_only=True),
        tool(
            context_delete,
            "Delete from shared context",
            schemas.ContextDeleted,
            destructive=True,
            idempotent=True,
        ),
        tool(context_list, "List shared context", schemas.ContextKeys, read_only=True),
        tool(context_snapshot, "Name a state of shared context", schemas.ContextSnapshotTaken),
        tool(
            context_restore,
            "Restore a state of shared context",
            schemas.ContextRestored,
            destructive=True,
            idempotent=True,
        ),
        tool(context_stats, "Statistics of shared context", schemas.ContextStats, read_only=True),
    ]


async def _scope(caller: Caller, name: str, agent_session: str | None) -> ContextScope:
    key = caller.agent.key
    if agent_session is not None:
        key = await caller.agents.known(caller.principal, agent_session)
    return scope_of(caller.principal.tenant, key, name)
