"""What is kept of what is said, for how long, and how much, tenant by tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_ROOM: Final = 0.9


@dataclass(frozen=True, slots=True)
class TreeSize:
    """The turns of a session, and the token ids that are stored of them."""

    turns: int
    tokens: int

    def less(self, branch: TreeSize) -> TreeSize:
        return TreeSize(self.turns - branch.turns, self.tokens - branch.tokens)


@dataclass(frozen=True, slots=True)
class TreeLimit:
    """How large the tree of a session may become; None: as large as it likes."""

    turns: int | None = None
    tokens: int | None = None

    def __bool__(self) -> bool:
        return self.turns is not None or self.tokens is not None

    def is_reached(self, size: TreeSize) -> bool:
        return (self.turns is not None and size.turns >= self.turns) or (
            self.tokens is not None and size.tokens >= self.tokens
        )

    def with_room(self) -> TreeLimit:
        """Nine tenths of it, so that not every turn has to make room for the next."""
        turns, tokens = (
            None if limit is None else max(int(limit * _ROOM), 1) for limit in (self.turns, self.tokens)
        )
        return TreeLimit(turns, tokens)


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """Without ``messages`` turns have token ids alone. Lifetimes are in seconds, 0 for ever and None: as for all tenants.

    Those of sessions that were found by what was said begin with ``found``; None: as for all sessions.
    """

    messages: bool = True
    session_ttl: float | None = None
    session_kept: float | None = None
    tree: TreeLimit = TreeLimit()
    found_session_ttl: float | None = None
    found_session_kept: float | None = None


@dataclass(frozen=True, slots=True)
class KeepPolicies:
    """``by_tenant`` replaces ``default``."""

    default: KeepPolicy = KeepPolicy()
    by_tenant: Mapping[str, KeepPolicy] = field(default_factory=dict)

    def of(self, tenant: str | None) -> KeepPolicy:
        """The policy of a tenant; None: of those that have none of their own."""
        return self.by_tenant.get(tenant or "", self.default)
