"""Which keys each scope of shared context has, and had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from cwm.domain.shared_context import Entry, Head, Scope, Snapshot, Write


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed up to ``head``; all there is when ``whole``."""

    head: Head
    entries: tuple[Entry, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Bytes:
    """A content as the store keeps it. With it the tenant may have ``quota_bytes``, None for any number."""

    digest: str
    stored: bytes
    quota_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """``entries`` as they are now; ``gone`` are the digests of contents that nobody holds any more."""

    head: Head
    entries: tuple[Entry, ...]
    gone: tuple[str, ...] = ()


class ContextIndex(Protocol):
    """Versions of every key, and the holds on their contents, which it moves in the same step.

    Expired entries are absent, also from the past, by the store's own clock. Every method raises
    StorageReadError or StorageWriteError when the store is away.
    """

    async def head(self, scope: Scope) -> Head: ...

    async def since(self, scope: Scope, version: int) -> Delta:
        """Entries written after ``version``, deletions too; all that are there when that is not known any more."""

    async def past(self, scope: Scope, key: str, version: int) -> Entry | None:
        """What the key was at ``version`` of the scope; None where it was not there."""

    async def state(self, scope: Scope, version: int) -> Sequence[Entry]:
        """All that was there at ``version``, in the order of the keys."""

    async def write(
        self,
        scope: Scope,
        writes: Sequence[Write],
        author: str,
        *,
        new: Bytes | None = None,
        at: int | None = None,
        keep: int,
    ) -> Written | None:
        """All of ``writes`` as one new version, or none: CWM-3007 names the key that was refused.

        The contents are held from then on: they are there already, or ``new`` brings them along, CWM-4003 over
        its quota. None when the scope is not at version ``at`` any more. ``keep`` versions of the past stay, and
        those that a snapshot shows. Nothing is written, and no version made, where every write is a deletion of
        what is not there.
        """

    async def take_snapshot(
        self, scope: Scope, label: str, author: str, most: int
    ) -> tuple[Snapshot, list[str]]:
        """Name the state that is now. At ``most`` the oldest make room: their labels. CWM-3007 for a label in use."""

    async def snapshots(self, scope: Scope) -> Sequence[Snapshot]:
        """The oldest first."""

    async def trim(self, scope: Scope) -> Sequence[str]:
        """Forget every version but the current one and those that a snapshot shows; digests as in ``gone``."""

    async def forget(self, scope: Scope) -> None:
        """All of it, with its past."""

    async def scopes(self, tenant: str) -> Sequence[Scope]:
        """Every scope of the tenant that was written, in the order of their keys."""

    async def private_scopes_of_every_tenant(self, written_before: datetime) -> Sequence[Scope]:
        """Scopes of agent sessions in which nothing was written since."""
