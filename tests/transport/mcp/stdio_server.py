"""A server over standard input and output whose one tool tells its progress, or does not come back."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

from fastmcp import Context

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.identity import LocalIdentity
from cwm.adapters.memory.agent_sessions import InProcessAgentSessions
from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.telemetry.logging import configure_logging
from cwm.services.access.standing import Standing
from cwm.services.agents.agents import Agents
from cwm.transport.mcp.contract.progress import Progress
from cwm.transport.mcp.listening.streams import EventStreams
from cwm.transport.mcp.listening.subscriptions import Subscriptions
from cwm.transport.mcp.mcp_server import McpFace
from cwm.transport.mcp.requests.agent import Agency
from cwm.transport.mcp.stdio import serve_stdio

PIECES = ["one ", "two ", "three"]


async def say(context: Context) -> str:
    progress = Progress(context, len(PIECES))
    async with progress.notifications():
        for tokens, piece in enumerate(PIECES, start=1):
            await progress(piece, tokens)
    return "".join(PIECES)


async def stay() -> None:
    sys.stderr.write("staying\n")
    await asyncio.get_running_loop().create_future()


def chatter() -> str:
    sys.stdout.write("this is no protocol\n")
    sys.stdout.flush()
    return "said"


def main() -> None:
    configure_logging("INFO")
    nobody = cast("Any", None)
    changes = InProcessChanges()
    agents = Agents(InProcessAgentSessions(), changes, SystemClock(), ttl_seconds=60, limit=10)
    agency = Agency(LocalIdentity("test"), agents)
    standing = Standing(agency.identity)
    streams = EventStreams(agents, changes, nobody, standing)
    subscriptions = Subscriptions(agents.store, changes, nobody, agency, standing)
    face = McpFace(
        nobody, agency, nobody, streams, subscriptions, {}, name="test", client_log_level="error", tasks=False
    )
    for function in (say, stay, chatter):
        face.tool(function)
    asyncio.run(serve_stdio(face))


if __name__ == "__main__":
    main()
