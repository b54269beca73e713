"""Publishes changes to other gateways, and receives theirs, over Redis pub/sub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, Final, NoReturn
from uuid import uuid4

import redis.asyncio as redis
import structlog
from redis.exceptions import RedisError

from cwm.adapters.memory.changes import InProcessChanges, Listener
from cwm.adapters.redis.keys import key_of_every_tenant
from cwm.domain.backoff import Backoff
from cwm.domain.changes import Change, ChangeKind

_FIELDS: Final = frozenset(field.name for field in fields(Change))
_CHANNEL: Final = key_of_every_tenant("changes")
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 15.0

_log = structlog.get_logger("cwm.changes")


class RedisChanges:
    """Delivers changes directly to listeners of this process, exactly once, even while Redis is down.

    Other gateways' changes arrive while ``read`` runs. After an outage it continues; changes published meanwhile
    are lost.
    """

    def __init__(self, client: redis.Redis) -> None:
        self.connected = asyncio.Event()
        """Set while other gateways' changes arrive."""
        self._client = client
        self._me = uuid4().hex
        self._here = InProcessChanges()

    async def publish(self, change: Change) -> None:
        self._here.tell(change)
        message = json.dumps({"from": self._me, **asdict(change)})
        try:
            await self._client.publish(_CHANNEL, message)
        except (RedisError, OSError) as failure:
            _log.warning("change_not_told", kind=change.kind, error=type(failure).__name__)

    def tell(self, change: Change) -> None:
        self._here.tell(change)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        return self._here.subscribe(listener)

    async def read(self) -> None:
        """Receive other gateways' changes until cancelled; after a failure, retry with growing pauses."""
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while True:
            try:
                await self._read_until_broken()
            except (RedisError, OSError) as failure:
                if self.connected.is_set():
                    backoff.reset()
                pause = backoff.pause_seconds()
                _log.warning("changes_not_heard", error=type(failure).__name__, retry_seconds=pause)
            finally:
                self.connected.clear()
            await asyncio.sleep(pause)

    async def _read_until_broken(self) -> NoReturn:
        async with self._client.pubsub() as subscription:
            await subscription.subscribe(_CHANNEL)
            while True:
                message = await subscription.get_message(timeout=_LOOK_SECONDS)
                if message is None:
                    # Detects a dead connection that sends nothing.
                    await subscription.ping()
                elif message["type"] == "subscribe":
                    self.connected.set()
                elif message["type"] == "message":
                    self._deliver(message["data"])

    def _deliver(self, message: str) -> None:
        try:
            payload: dict[str, Any] = json.loads(message)
            if payload.pop("from") != self._me:
                fields = {name: value for name, value in payload.items() if name in _FIELDS}
                self._here.tell(Change(**{**fields, "kind": ChangeKind(payload["kind"])}))
        except (ValueError, TypeError, KeyError, AttributeError):
            # A message of another version or program must not end the reading.
            _log.warning("change_not_understood")
