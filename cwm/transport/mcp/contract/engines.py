"""Tools for operators of several engines: list them, move a session, drain an engine, upgrade a model."""

from __future__ import annotations

from typing import Annotated

from fastmcp import Context
from fastmcp.tools import FunctionTool
from pydantic import Field

from cwm.domain.errors import InvalidParameterError
from cwm.transport.mcp.contract import inputs
from cwm.transport.mcp.contract.progress import steps
from cwm.transport.mcp.contract.render import engines as render
from cwm.transport.mcp.contract.schemas import engines as schemas
from cwm.transport.mcp.contract.tool import tool
from cwm.transport.mcp.mcp_server import CALLER, Caller


async def engine_list(
    engine: Annotated[inputs.Engine | None, Field(description="Only this engine")] = None,
    caller: Caller = CALLER,
) -> schemas.EngineList:
    """List the engines: what each serves, how busy it is, how many sessions are on it, whether it answers.

    Engines with the same deployment of a model share KV, and sessions can move between them. In the gateway's own tenant
    all engines are listed, and sessions counts live sessions of all tenants. Elsewhere it is those that serve the tenant,
    with its own sessions; running, the requests that an engine works on now, is left out if it serves others, too.

    Errors: CWM-1003 no such engine; CWM-4002 the registry cannot be read (retryable).
    """
    survey = caller.services.survey
    if engine is not None:
        survey.require(caller.principal, engine)
    return render.engines([each for each in await survey(caller.principal) if engine in {None, each.name}])


async def session_move(
    context: Context,
    session_id: Annotated[inputs.SessionId, Field(description="Id of an active or thawed session")],
    engine: Annotated[inputs.Engine, Field(description="Name of the engine to move it to")],
    caller: Caller = CALLER,
) -> schemas.SessionMoved:
    """Move a session to another engine with its KV, and prove that it is the same there.

    What is missing in the shared tiers is stored, the other engine loads it and its KV is compared; only then the session
    goes there. Meanwhile its turns wait for a moment. If anything fails the session stays where it is. An engine that
    does not answer any more is left without a canary: source_answered is false then.

    Errors: CWM-1001; CWM-1003 no such engine, or one that is drained; CWM-2001; CWM-3002 not live, or a turn or
    another move is in flight (retryable); CWM-3011 the engine serves another model or deployment; CWM-4001 the KV
    cannot be stored or does not arrive (retryable); CWM-5001/6001 the engine does not answer (retryable); CWM-5002
    the KV is wrong there.
    """
    moved = await caller.services.move(caller.principal, session_id, engine, steps(context))
    return render.moved(moved)


async def engine_drain(
    context: Context,
    engine: Annotated[inputs.Engine, Field(description="Name of the engine")],
    undo: Annotated[
        bool, Field(description="Let it take new sessions again; those that moved stay where they are")
    ] = False,
    timeout_seconds: Annotated[
        int, Field(ge=1, le=3600, description="How long to go on moving sessions")
    ] = 300,
    caller: Caller = CALLER,
) -> schemas.EngineDrained:
    """Move all sessions of an engine to others, and give it no new ones until that is undone.

    Ends when no session is left, when none of those left can move, or after the timeout; call it again to go on.
    stayed names the sessions of your tenant that could not move, and why; stayed_elsewhere counts those of other
    tenants. A session that was not moved goes on where it is. An engine that serves your tenant alone is yours to drain; any
    other needs admin in the gateway's own tenant.

    Errors: CWM-1003 no such engine; CWM-9002 it serves other tenants, too; CWM-4001/4002 the registry cannot be written or
    read (retryable).
    """
    drain, step = caller.services.drain, steps(context)

    async def on_moved(moved: int, of: int) -> None:
        await step(f"moved {moved} of {of}")

    if undo:
        drained = await drain.undo(caller.principal, engine)
    else:
        drained = await drain(caller.principal, engine, timeout_seconds=timeout_seconds, on_moved=on_moved)
    return render.drained(drained, caller.principal.tenant)


async def engine_upgrade(
    model: Annotated[inputs.Model, Field(description="Name of the model")],
    to: Annotated[
        inputs.Deployment | None,
        Field(
            description="The new deployment, or the name of an engine of it; without it nothing is changed"
        ),
    ] = None,
    undo: Annotated[
        bool, Field(description="Prefer no deployment any more; windows that were frozen again stay so")
    ] = False,
    caller: Caller = CALLER,
) -> schemas.EngineUpgrade:
    """Say which deployment of a model is the new one, or see how far its upgrade is.

    New sessions go to engines of the new deployment, and the gateways freeze the model's guaranteed windows there again in
    the background; until a window is proven there it stays as it was. Sessions on the old deployment stay there until
    their engine is drained or gone. It may be repeated; the last deployment named counts. It concerns all tenants.

    Errors: CWM-1003 no such model, engine or deployment, or to together with undo; CWM-3011 a router chooses the engine;
    CWM-9002 your tenant is not the gateway's own; CWM-4001/4002 the registry cannot be written or read (retryable).
    """
    upgrades = caller.services.upgrades
    if undo and to is not None:
        raise InvalidParameterError("Either to or undo.", field="undo")
    if undo:
        return render.upgraded(await upgrades.end(caller.principal, model))
    if to is not None:
        return render.upgraded(await upgrades.begin(caller.principal, model, to))
    return render.upgraded(await upgrades.show(caller.principal, model))


def engine_tools() -> list[FunctionTool]:
    return [
        tool(engine_list, "List engines", schemas.EngineList, read_only=True),
        tool(session_move, "Move a session", schemas.SessionMoved, idempotent=True),
        tool(engine_drain, "Drain an engine", schemas.EngineDrained, idempotent=True),
        tool(engine_upgrade, "Upgrade a model", schemas.EngineUpgrade, idempotent=True),
    ]
