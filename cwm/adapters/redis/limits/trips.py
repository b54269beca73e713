"""Commands of concurrent requests, sent to the shared store in one round trip."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio as redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from cwm.adapters.redis.connection import TracedRedis
from cwm.ports.tracing import UNTRACED

_PATIENCE_SECONDS: Final = 0.5
_AT_ONCE: Final = 256

Command = Sequence[Any]


class Script:
    """A Lua script and the digest by which Redis knows it after its first run."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Trips:
    """Sends the commands of concurrent requests together, and no command twice.

    Commands that arrive during a round trip leave with the next one. A round trip is a task of its own, so that a
    cancelled request does not disturb the others. When the store does not answer in time, the connection is closed
    and every command of that trip fails.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._tracer = client.tracer if isinstance(client, TracedRedis) else UNTRACED
        self._waiting: deque[tuple[Command, asyncio.Future[Any]]] = deque()
        self._trip: asyncio.Task[None] | None = None

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        """The result of the script. Raises RedisError or OSError."""
        rest = (len(keys), *keys, *args)
        with self._tracer.call("EVALSHA", {"db.system.name": "redis", "db.operation.name": "EVALSHA"}):
            try:
                return await self._ask(("EVALSHA", script.digest, *rest))
            except NoScriptError:
                return await self._ask(("EVAL", script.text, *rest))

    async def tell(self, commands: Sequence[Command]) -> None:
        """Send commands whose results do not matter. Raises RedisError or OSError."""
        await asyncio.gather(*map(self._ask, commands))

    def _ask(self, command: Command) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        if self._trip is None:
            self._trip = asyncio.create_task(self._travel())
        return answer

    async def _travel(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]
                # A command whose request was cancelled meanwhile is not sent.
                await self._once([each for each in batch if not each[1].done()])
        finally:
            self._trip = None
            while self._waiting:
                self._waiting.popleft()[1].cancel()

    async def _once(self, batch: Sequence[tuple[Command, asyncio.Future[Any]]]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._exchange(batch)
        except (RedisError, OSError) as away:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(away)
        finally:
            for _, answer in batch:
                answer.cancel()

    async def _exchange(self, batch: Sequence[tuple[Command, asyncio.Future[Any]]]) -> None:
        if not batch:
            return
        pool: Any = self._pool
        connection = await pool.get_connection()
        try:
            packed = connection.pack_commands([command for command, _ in batch])
            await connection.send_packed_command(packed, check_health=False)
            for _, answer in batch:
                try:
                    value, refusal = await connection.read_response(), None
                except ResponseError as error:
                    value, refusal = None, error
                if answer.done():
                    continue
                if refusal is None:
                    answer.set_result(value)
                else:
                    answer.set_exception(refusal)
        except BaseException:
            # The next user of the connection would read the answers that are still to come.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)
