"""A byte store shared by several gateways. Bytes stay for as long as somebody holds them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Stored bytes. ``ends_at`` is when the last hold expires, None for never."""

    stored: bytes
    ends_at: datetime | None


class ContentStore(Protocol):
    """Opaque bytes by tenant and digest: one copy, however many holders.

    An expired hold no longer counts. Every method raises StorageReadError or StorageWriteError when the store is
    unavailable.
    """

    async def put(
        self,
        tenant: str,
        digest: str,
        stored: bytes,
        holder: str,
        expires_at: datetime | None,
        quota_bytes: int | None,
    ) -> None:
        """Store ``stored`` and add the hold of ``holder``, atomically; other holds stay.

        Different bytes under the same digest are replaced: they are damaged, or another encoding of the same
        content. A hold ends at ``expires_at``, or never for None. CWM-4003 when the tenant would exceed
        ``quota_bytes``.
        """

    async def hold(self, tenant: str, digest: str, holder: str, expires_at: datetime | None) -> bool:
        """Add a hold on stored bytes, or change when the holder's hold expires. False when nothing is stored."""

    async def get(self, tenant: str, digest: str) -> Content | None:
        """The stored bytes, or None when nobody holds them."""

    async def release(self, tenant: str, digest: str, holder: str) -> bool:
        """Remove a hold. True when it was the last one, and the bytes are removed."""

    async def drop(self, tenant: str, digest: str, stored: bytes) -> bool:
        """Remove exactly these bytes, whoever holds them. False when they are not stored, or were replaced."""

    async def used_bytes(self, tenant: str) -> int:
        """The total size in bytes of one copy of everything. Expired bytes may count until the next vacuum."""

    async def vacuum_of_every_tenant(self) -> int:
        """Remove all bytes whose holds have all expired; returns how many contents that were."""
