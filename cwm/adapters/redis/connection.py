"""How the shared store is reached, and what is said when it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from cwm.adapters import certificates
from cwm.domain.errors import CwmError, StorageReadError
from cwm.ports.tracing import UNTRACED, Tracer

_PATIENCE_SECONDS: Final = 3.0
_VALKEY_SCHEMES: Final = {"valkey": "redis", "valkeys": "rediss"}


class TracedRedis(redis.Redis):
    """Each command as a span: its name, no key and no value."""

    tracer: Tracer = UNTRACED

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        command = str(args[0])
        with self.tracer.call(command, {"db.system.name": "redis", "db.operation.name": command}):
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


def connect(url: str, tracer: Tracer = UNTRACED, *, again: bool = True) -> redis.Redis:
    """A pool that opens nothing yet. One more try makes up for a connection that died while idle.

    What must not be done twice is sent ``again`` by nobody: it may have been done although the answer was lost.
    Whoever asks such a client says how long it may take.
    """
    client = _connected(TracedRedis if tracer.on else redis.Redis, url, again=again)
    if isinstance(client, TracedRedis):
        client.tracer = tracer
    return client


def _connected(kind: type[redis.Redis], url: str, *, again: bool) -> redis.Redis:
    scheme, colon, rest = url.partition(":")
    return kind.from_url(
        f"{_VALKEY_SCHEMES.get(scheme, scheme)}{colon}{rest}",
        decode_responses=True,
        socket_connect_timeout=_PATIENCE_SECONDS,
        socket_timeout=_PATIENCE_SECONDS if again else None,
        retry=Retry(NoBackoff(), 1 if again else 0),
    )


async def ping(client: redis.Redis) -> None:
    """CWM-4002 unless it answers."""
    async with told_as(StorageReadError, "The shared store does not answer."):
        await client.ping()


@asynccontextmanager
async def told_as(error: type[CwmError], sentence: str) -> AsyncIterator[None]:
    """What Redis says is for the log of whoever looks for the cause; callers get ``sentence``."""
    try:
        yield
    except (RedisError, OSError) as away:
        if (wrong := certificates.fault(away)) is not None:
            sentence = f"The shared store {wrong}. Check CWM_SHARED_STORE_URL (or CWM_REDIS_URL)."
        raise error(sentence) from away
