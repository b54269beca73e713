"""The keys of every scope of shared context, with their past versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from cwm.domain.shared_context import ContextScope, Entry, Head, Snapshot, Write


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed up to ``head``; all entries when ``whole``."""

    head: Head
    entries: tuple[Entry, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Bytes:
    """A content to store along with a write. ``quota_bytes`` is the tenant's quota in bytes, None for no limit."""

    digest: str
    stored: bytes
    quota_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write. ``entries`` are the current ones.

    ``gone`` lists the digests of contents that nobody holds any more.
    """

    head: Head
    entries: tuple[Entry, ...]
    gone: tuple[str, ...] = ()


class ContextIndex(Protocol):
    """Versions of every key, and the holds on their contents, which change in the same transaction.

    Expired entries, judged by the store's clock, are absent from present and past states. Every method raises
    StorageReadError or StorageWriteError when the store is unavailable.
    """

    async def head(self, scope: ContextScope) -> Head: ...

    async def since(self, scope: ContextScope, version: int) -> Delta:
        """Entries written after ``version``, deletions included.

        All present entries when that version is no longer known.
        """

    async def past(self, scope: ContextScope, key: str, version: int) -> Entry | None:
        """The key's entry at ``version`` of the scope; None when it was absent."""

    async def state(self, scope: ContextScope, version: int) -> Sequence[Entry]:
        """All entries at ``version``, ordered by key."""

    async def write(
        self,
        scope: ContextScope,
        writes: Sequence[Write],
        author: str,
        *,
        new: Bytes | None = None,
        at: int | None = None,
        keep: int,
    ) -> Written | None:
        """Apply all ``writes`` as one new version, or none of them. CWM-3007 names the key that was refused.

        The written entries hold their contents, which are stored already or come with ``new`` (CWM-4003 over its
        quota). Returns None when ``at`` is given and the scope is no longer at that version. ``keep`` past versions
        stay readable, and those with a snapshot. When every write deletes an absent key, nothing is written and no
        version is made.
        """

    async def take_snapshot(
        self, scope: ContextScope, label: str, author: str, most: int
    ) -> tuple[Snapshot, list[str]]:
        """Label the current state; returns the snapshot and the labels of those removed to make room.

        At ``most`` snapshots, the oldest ones are removed. CWM-3007 for a label in use.
        """

    async def snapshots(self, scope: ContextScope) -> Sequence[Snapshot]:
        """All snapshots, the oldest first."""

    async def trim(self, scope: ContextScope) -> Sequence[str]:
        """Remove every version but the current one and those with a snapshot; returns digests as in ``gone``."""

    async def forget(self, scope: ContextScope) -> None:
        """Remove the scope with all its versions."""

    async def scopes(self, tenant: str) -> Sequence[ContextScope]:
        """Every scope of the tenant that was ever written, ordered by key."""

    async def private_scopes_of_every_tenant(self, written_before: datetime) -> Sequence[ContextScope]:
        """Scopes of agent sessions without a write since ``written_before``."""
