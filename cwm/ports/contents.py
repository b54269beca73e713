"""Content-addressed storage: one copy per tenant, however many holders."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Contents(Protocol):
    """Stores bytes under their SHA-256 for as long as somebody holds them.

    A holder is any name that is unique in its tenant, such as ``result:<handle>``. Every method raises
    StorageReadError or StorageWriteError when the store is unavailable. Bytes that no longer match their digest are
    removed and never returned.
    """

    async def keep(self, tenant: str, plain: bytes, holder: str, expires_at: datetime | None) -> str:
        """Store ``plain`` for ``holder`` until ``expires_at`` (None: for ever).

        Returns the digest, 64 hexadecimal digits. It returns once a crash cannot lose the bytes. Storing again for
        the same holder changes when its hold expires.
        """

    async def read(self, tenant: str, digest: str) -> bytes | None:
        """The bytes, or None when nobody holds them any more."""

    async def let_go(self, tenant: str, digest: str, holder: str) -> None:
        """Remove the holder's hold. The bytes go with the last hold."""
