"""Connects to the shared store, and maps its failures to CWM's errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from cwm.adapters import certificates
from cwm.domain.errors import CwmError, StorageReadError, StorageWriteError
from cwm.ports.tracing import UNTRACED, Tracer

_PATIENCE_SECONDS: Final = 3.0
_VALKEY_SCHEMES: Final = {"valkey": "redis", "valkeys": "rediss"}


class TracedRedis(redis.Redis):
    """A client with a span for each command: its name, without keys and values."""

    tracer: Tracer = UNTRACED

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        command = str(args[0])
        with self.tracer.call(command, {"db.system.name": "redis", "db.operation.name": command}):
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


def connect(url: str, tracer: Tracer = UNTRACED, *, again: bool = True) -> redis.Redis:
    """A pool that connects on first use. One retry handles a connection that died while idle.

    Use ``again=False`` for commands that must not run twice: one may have run although its response was lost.
    Callers of such a client set their own time limit.
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
    """Raise CWM-4002 unless the shared store answers."""
    async with coded_errors(StorageReadError, "The shared store does not answer."):
        await client.ping()


@asynccontextmanager
async def coded_errors(error: type[CwmError], sentence: str) -> AsyncIterator[None]:
    """Raise ``error`` with ``sentence`` for a failure of Redis, whose own message is only the cause, for the log."""
    try:
        yield
    except (RedisError, OSError) as failure:
        if (fault := certificates.fault(failure)) is not None:
            sentence = f"The shared store {fault}. Check CWM_SHARED_STORE_URL (or CWM_REDIS_URL)."
        raise error(sentence) from failure


def reading(what: str) -> AbstractAsyncContextManager[None]:
    return coded_errors(StorageReadError, f"{what} cannot be read; try again soon.")


def writing(what: str) -> AbstractAsyncContextManager[None]:
    return coded_errors(StorageWriteError, f"{what} cannot be written; try again soon.")
