"""The stores of agent data that gateways share: in Redis, or else in the registry's database and this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cwm.adapters.memory.agent_sessions import InProcessAgentSessions
from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.sql.context.contents import SqlContentStore
from cwm.adapters.sql.context.index import SqlContextIndex
from cwm.adapters.sql.context.results import SqlResultRecords
from cwm.adapters.sql.database import Database
from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.changes import Changes
from cwm.ports.clock import Clock
from cwm.ports.content_store import ContentStore
from cwm.ports.context_index import ContextIndex
from cwm.ports.results import ResultRecords
from cwm.ports.tracing import Tracer
from cwm.settings import Settings

if TYPE_CHECKING:
    from redis.asyncio import Redis


@dataclass(frozen=True, slots=True)
class SharedStore:
    """Agent data that gateways share. ``read`` receives changes and runs as long as the gateway.

    ``counting`` is a second client of the same store that never retries a command.
    """

    agent_sessions: AgentSessions
    changes: Changes
    contents: ContentStore
    context: ContextIndex
    results: ResultRecords
    read: Callable[[], Coroutine[Any, Any, None]]
    close: Callable[[], Awaitable[None]]
    counting: Redis | None = None
    ping: Callable[[], Awaitable[None]] | None = None


def shared_store(settings: Settings, database: Database, clock: Clock, tracer: Tracer) -> SharedStore:
    shared, url = settings.shared, settings.shared_store_url()
    if url is None:
        local_changes = InProcessChanges()
        return SharedStore(
            agent_sessions=InProcessAgentSessions(
                shared.agent_session_ttl_seconds, shared.agent_session_limit
            ),
            changes=local_changes,
            contents=SqlContentStore(database, clock),
            context=SqlContextIndex(database),
            results=SqlResultRecords(database),
            read=local_changes.read,
            close=local_changes.close,
        )
    # Imported on use: the Redis client takes memory that a single gateway does not need.
    from cwm.adapters.redis.agents.agent_sessions import RedisAgentSessions
    from cwm.adapters.redis.agents.changes import RedisChanges
    from cwm.adapters.redis.agents.recently_seen import RecentlySeen
    from cwm.adapters.redis.connection import connect, ping
    from cwm.adapters.redis.context.contents import RedisContentStore
    from cwm.adapters.redis.context.index import RedisContextIndex
    from cwm.adapters.redis.context.results import RedisResultRecords

    client, counting = connect(url, tracer), connect(url, tracer, again=False)
    changes = RedisChanges(client)
    ttl_seconds = shared.agent_session_ttl_seconds
    sessions = RedisAgentSessions(client, ttl_seconds, RecentlySeen(changes, ttl_seconds))

    async def close() -> None:
        await counting.aclose()
        await client.aclose()

    return SharedStore(
        agent_sessions=sessions,
        changes=changes,
        contents=RedisContentStore(client),
        context=RedisContextIndex(client),
        results=RedisResultRecords(client),
        read=changes.read,
        close=close,
        counting=counting,
        ping=partial(ping, client),
    )
