"""Windows: frozen, named prefixes plus their records; immutable once they are durable."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import TENANT


class Durability(StrEnum):
    """How far a freeze got: its KV is being stored, is proven to be stored, or could not be stored.

    An automatic window is durable without a proof.
    """

    PENDING = "pending"
    DURABLE = "durable"
    FAILED = "failed"


class Retention(StrEnum):
    """Whether CWM keeps a window's KV (pinned, counted against the quota, stored again when lost) or only its tokens."""

    GUARANTEED = "guaranteed"
    BEST_EFFORT = "best_effort"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One stored chunk of a window. ``hash`` is LMCache's, in hex."""

    hash: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The exact token ids of a window, stored once and shared by its clones."""

    id: str
    tenant: str
    token_ids: TokenIds
    digest: str


@dataclass(frozen=True, slots=True)
class Window:
    """The record of a frozen context. Sizes are the bytes of one copy in the shared tier.

    ``cache_salt`` and ``identity`` say under which salt and by which engine its chunks were stored;
    ``parent_window`` is the window that it was cloned or continued from, ``branch_token`` the token at which.
    ``pinned`` says that the window owns one pin on its prefix; it is deleted at ``expires_at``; ``proven_at`` is
    when all its chunks were last read back. ``turn_id`` is the turn of ``session_id`` whose context it is. An ``automatic``
    window was made by the autosave, which deletes it in the end. ``circle`` says who may see it.
    """

    tenant: str
    name: str
    session_id: str
    owner: str
    snapshot_id: str
    model: str
    token_count: int
    block_count: int
    total_size_bytes: int
    storage_tier: Tier
    durability: Durability
    salt_scope: str
    cache_salt: str
    identity: EngineIdentity
    created_at: datetime
    updated_at: datetime
    description: str = ""
    tags: tuple[str, ...] = ()
    parent_window: str | None = None
    branch_token: int | None = None
    pinned: bool = False
    failure: str | None = None
    tiers: dict[str, int] = field(default_factory=dict)
    retention: Retention = Retention.GUARANTEED
    expires_at: datetime | None = None
    proven_at: datetime | None = None
    turn_id: str | None = None
    automatic: bool = False
    circle: str = TENANT

    @property
    def stored_tier(self) -> Tier | None:
        """``storage_tier`` once blocks are proven to be there; None while nothing is stored."""
        return self.storage_tier if self.block_count and self.durability is Durability.DURABLE else None

    @property
    def warning(self) -> str | None:
        """Why the window has no blocks, and will have none."""
        if self.identity.no_reuse:
            return f"{self.identity.no_reuse} The tokens are kept, a thaw computes their KV again."
        if self.identity.stored_chunk is None:
            return "This engine has no LMCache: the tokens are kept, a thaw computes their KV again."
        if self.block_count or self.durability is not Durability.DURABLE:
            return None
        return (
            f"The context is shorter than one block of {self.identity.chunk_size} tokens: "
            "the tokens are kept, a thaw computes their KV again."
        )


class WindowSort(StrEnum):
    NAME = "name"
    CREATED_AT = "created_at"
    TOKEN_COUNT = "token_count"  # noqa: S105 - a field name
    SIZE = "size"


DEFAULT_PAGE: Final = 20


@dataclass(frozen=True, slots=True)
class WindowMark:
    """A position in a sorted list, right after a window: that window's name and sort value."""

    value: str | int | datetime
    name: str


@dataclass(frozen=True, slots=True)
class WindowQuery:
    """The parameters of ``window_list``. All ``tags`` must be present; ``search`` matches names and descriptions.

    ``offset`` counts from ``after``, if that is given. Only windows in one of ``circles`` match (in any if None).
    """

    tags: tuple[str, ...] = ()
    model: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    sort_by: WindowSort = WindowSort.CREATED_AT
    descending: bool = True
    limit: int = DEFAULT_PAGE
    offset: int = 0
    search: str | None = None
    after: WindowMark | None = None
    circles: frozenset[str] | None = None

    def mark(self, window: Window) -> WindowMark:
        """The position right after ``window`` in this query's order."""
        values: dict[WindowSort, str | int | datetime] = {
            WindowSort.NAME: window.name,
            WindowSort.CREATED_AT: window.created_at,
            WindowSort.TOKEN_COUNT: window.token_count,
            WindowSort.SIZE: window.total_size_bytes,
        }
        return WindowMark(values[self.sort_by], window.name)


@dataclass(frozen=True, slots=True)
class WindowList:
    """One page of the matching windows, in order.

    ``total`` counts the matches on all pages; it is a lower bound unless ``total_exact``.
    """

    windows: list[Window]
    total: int
    has_more: bool
    total_exact: bool = True
