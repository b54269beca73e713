"""Agent sessions of one gateway process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from cwm.domain.principal import Principal


@dataclass(slots=True)
class _Kept:
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
    _kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)
    _of: dict[str | None, OrderedDict[str, None]] = field(default_factory=dict)
    _left: dict[str, dict[str, str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def outlives_us(self) -> bool:
        return False

    async def begin(self, owner: Principal) -> str:
        session_id = uuid4().hex
        self._keep(session_id, owner)
        return session_id

    async def touch(self, session_id: str, owner: Principal) -> bool:
        self._drop_idle()
        kept = self._kept.get(session_id)
        if kept is None or kept.owner != owner:
            return False
        self._use(session_id)
        return True

    async def end(self, session_id: str) -> bool:
        self._drop_idle()
        self._left.pop(session_id, None)
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
        kept = self._use(key) or (self._keep(key, None) if anew else None)
        if kept is None:
            return None
        if kept.state.get(name) in {None, instead_of}:
            kept.state[name] = value
        if leaves:
            kept.leaves.add(name)
        return kept.state[name]

    async def recall(self, key: str) -> Mapping[str, str]:
        self._drop_idle()
        kept = self._use(key)
        return {} if kept is None else dict(kept.state)

    async def add(self, key: str, name: str, amount: int) -> int | None:
        self._drop_idle()
        kept = self._use(key)
        if kept is None:
            return None
        count = int(kept.state.get(name, "0")) + amount
        kept.state[name] = str(count)
        return count

    async def forget(self, key: str, name: str) -> None:
        self._drop_idle()
        kept = self._use(key)
        if kept is not None:
            kept.state.pop(name, None)

    async def abandoned(self) -> Sequence[tuple[str, Mapping[str, str]]]:
        self._drop_idle()
        left, self._left = self._left, {}
        return list(left.items())

    def _keep(self, key: str, owner: Principal | None) -> _Kept:
        self._drop_idle()
        kept = _Kept(owner, self.monotonic())
        tenant = _tenant(kept)
        while len(self._kept) >= self.limit:
            # Counts the new key too.
            most = max(self._of, key=lambda each: len(self._of[each]) + (each == tenant))
            self._drop(next(iter(self._of[most])))
        self._kept[key] = kept
        self._of.setdefault(tenant, OrderedDict())[key] = None
        return kept

    def _use(self, key: str) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is not None:
            kept.used_at = self.monotonic()
            self._kept.move_to_end(key)
            self._of[_tenant(kept)].move_to_end(key)
        return kept

    def _drop_idle(self) -> None:
        oldest = self.monotonic() - self.ttl_seconds
        while self._kept and next(iter(self._kept.values())).used_at < oldest:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: str) -> None:
        kept = self._pop(key)
        if kept and (left := {name: kept.state[name] for name in kept.leaves & kept.state.keys()}):
            self._left[key] = left

    def _pop(self, key: str) -> _Kept | None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            own = self._of[_tenant(kept)]
            del own[key]
            if not own:
                del self._of[_tenant(kept)]
        return kept


def _tenant(kept: _Kept) -> str | None:
    return None if kept.owner is None else kept.owner.tenant
