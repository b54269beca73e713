"""Agent sessions that Redis knew a moment ago: a busy one is not asked after with every call."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from cwm.adapters.redis.agents.changes import RedisChanges
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.principal import Principal

_SECONDS: Final = 1.0
# Longer than that takes from how long it lasts, nobody notices.
_OF_ITS_LIFE: Final = 0.1

_Session = tuple[str, Principal]


# Bypass (decision 0028): a session that was seen within a second is not looked up in Redis.
class RecentlySeen:
    """For a second, and only while the ends that other gateways tell are heard.

    An end is told before whoever asked for it is answered, so that a session is forgotten here as soon as the news
    has come; where it is lost, a second later.
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
        """How many were heard of: to be asked before Redis is."""
        return self._ends

    def seen(self, session_id: str, owner: Principal, ends: int) -> None:
        """Redis knows it. Of no use where an end was heard since there were so many: it may be this one's."""
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
