"""Caches agent sessions that Redis confirmed a moment ago, so that a busy session needs no request per call."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from cwm.adapters.redis.agents.changes import RedisChanges
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.principal import Principal

_SECONDS: Final = 1.0
# At most this share of the lifetime, because a call that is answered here does not extend the lifetime in Redis.
_OF_ITS_LIFE: Final = 0.1

_Session = tuple[str, Principal]


# Bypass (decision 0028): a session that was seen within a second is not looked up in Redis.
class RecentlySeen:
    """Caches for one second, and only while changes of other gateways arrive.

    A gateway publishes the end of a session before it answers the request that ended it, so a session is dropped here
    as soon as that change arrives; if the change is lost, a second later.
    """

    def __init__(self, changes: RedisChanges, ttl_seconds: float) -> None:
        self._connected = changes.connected
        self.seconds = min(_SECONDS, ttl_seconds * _OF_ITS_LIFE)
        self._until: OrderedDict[_Session, float] = OrderedDict()
        self._ends = 0
        changes.subscribe(self._hear)

    def knows(self, session_id: str, owner: Principal) -> bool:
        until = self._until.get((session_id, owner), 0.0)
        return self._connected.is_set() and time.monotonic() < until

    def ends(self) -> int:
        """The number of ended sessions so far; read it before asking Redis."""
        return self._ends

    def seen(self, session_id: str, owner: Principal, ends: int) -> None:
        """Cache a session that Redis confirmed; not if a session has ended since ``ends``, as it may be this one."""
        if ends != self._ends or not self._connected.is_set():
            return
        now = time.monotonic()
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        self._until[session_id, owner] = now + self.seconds
        self._until.move_to_end((session_id, owner))

    def _hear(self, change: Change) -> None:
        if change.kind is ChangeKind.ENDED:
            self._ends += 1
            for session in [each for each in self._until if each[0] == change.agent_session]:
                del self._until[session]
