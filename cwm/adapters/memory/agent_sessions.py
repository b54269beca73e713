"""Agent sessions of one gateway process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from cwm.domain.principal import Principal


@dataclass(slots=True)
class _Session:
    owner: Principal | None
    used_at: float
    state: dict[str, str] = field(default_factory=dict)
    leaves: set[str] = field(default_factory=set)


@dataclass(slots=True)
class InProcessAgentSessions:
    """Holds at most ``limit`` keys: a new key evicts the longest idle one of the tenant with the most keys.

    Keys that are not session ids have no owner and count as one tenant.
    """

    ttl_seconds: float = 1800.0
    limit: int = 10_000
    monotonic: Callable[[], float] = time.monotonic
    _kept: OrderedDict[str, _Session] = field(default_factory=OrderedDict)
    _by_tenant: dict[str | None, OrderedDict[str, None]] = field(default_factory=dict)
    _abandoned: dict[str, dict[str, str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def outlives_us(self) -> bool:
        return False

    async def begin(self, owner: Principal) -> str:
        session_id = uuid4().hex
        self._insert(session_id, owner)
        return session_id

    async def touch(self, session_id: str, owner: Principal) -> bool:
        self._drop_idle()
        session = self._kept.get(session_id)
        if session is None or session.owner != owner:
            return False
        self._use(session_id)
        return True

    async def end(self, session_id: str) -> bool:
        self._drop_idle()
        self._abandoned.pop(session_id, None)
        return self._pop(session_id) is not None

    async def alive(self, key: str) -> bool:
        self._drop_idle()
        return key in self._kept

    async def remember(
        self,
        key: str,
        name: str,
        value: str,
        *,
        instead_of: str | None = None,
        anew: bool = False,
        leaves: bool = False,
    ) -> str | None:
        self._drop_idle()
        session = self._use(key) or (self._insert(key, None) if anew else None)
        if session is None:
            return None
        if session.state.get(name) in {None, instead_of}:
            session.state[name] = value
        if leaves:
            session.leaves.add(name)
        return session.state[name]

    async def recall(self, key: str) -> Mapping[str, str]:
        self._drop_idle()
        session = self._use(key)
        return {} if session is None else dict(session.state)

    async def add(self, key: str, name: str, amount: int) -> int | None:
        self._drop_idle()
        session = self._use(key)
        if session is None:
            return None
        count = int(session.state.get(name, "0")) + amount
        session.state[name] = str(count)
        return count

    async def forget(self, key: str, name: str) -> None:
        self._drop_idle()
        session = self._use(key)
        if session is not None:
            session.state.pop(name, None)

    async def abandoned(self) -> Sequence[tuple[str, Mapping[str, str]]]:
        self._drop_idle()
        abandoned, self._abandoned = self._abandoned, {}
        return list(abandoned.items())

    def _insert(self, key: str, owner: Principal | None) -> _Session:
        self._drop_idle()
        session = _Session(owner, self.monotonic())
        tenant = _tenant(session)
        while len(self._kept) >= self.limit:
            # Counts the new key too.
            most = max(self._by_tenant, key=lambda each: len(self._by_tenant[each]) + (each == tenant))
            self._drop(next(iter(self._by_tenant[most])))
        self._kept[key] = session
        self._by_tenant.setdefault(tenant, OrderedDict())[key] = None
        return session

    def _use(self, key: str) -> _Session | None:
        session = self._kept.get(key)
        if session is not None:
            session.used_at = self.monotonic()
            self._kept.move_to_end(key)
            self._by_tenant[_tenant(session)].move_to_end(key)
        return session

    def _drop_idle(self) -> None:
        oldest = self.monotonic() - self.ttl_seconds
        while self._kept and next(iter(self._kept.values())).used_at < oldest:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: str) -> None:
        session = self._pop(key)
        if session and (
            state := {name: session.state[name] for name in session.leaves & session.state.keys()}
        ):
            self._abandoned[key] = state

    def _pop(self, key: str) -> _Session | None:
        session = self._kept.pop(key, None)
        if session is not None:
            own = self._by_tenant[_tenant(session)]
            del own[key]
            if not own:
                del self._by_tenant[_tenant(session)]
        return session


def _tenant(session: _Session) -> str | None:
    return None if session.owner is None else session.owner.tenant
