"""Bytes that several gateways share, kept for as long as somebody holds them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """``ends_at`` is when the last hold ends, None for never."""

    stored: bytes
    ends_at: datetime | None


class ContentStore(Protocol):
    """Opaque bytes by tenant and digest, one copy however many hold it.

    A hold that ended counts no more. Every method raises StorageReadError or StorageWriteError when the store
    is away.
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
        """Keep ``stored`` for ``holder``, atomically, beside who holds it already.

        Other bytes under the digest are replaced: they are damaged, or the same content in another form.

        CWM-4003 when the tenant would have more than ``quota_bytes``.
        """

    async def hold(self, tenant: str, digest: str, holder: str, expires_at: datetime | None) -> bool:
        """Keep what is there for one more holder, or move the holder's end. False where there is nothing."""

    async def get(self, tenant: str, digest: str) -> Content | None:
        """What was put, or None where nobody holds it."""

    async def release(self, tenant: str, digest: str, holder: str) -> bool:
        """End a hold. True when it was the last, and the bytes are gone."""

    async def drop(self, tenant: str, digest: str, stored: bytes) -> bool:
        """Forget these bytes whoever holds them. False where they are not there, or others by now."""

    async def used_bytes(self, tenant: str) -> int:
        """Of one copy of everything; what ended may count until the next vacuum."""

    async def vacuum_of_every_tenant(self) -> int:
        """Forget what every hold of has ended; how many that were."""
