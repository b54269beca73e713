"""Values by what is in them: one copy in a tenant, however many things hold it."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Contents(Protocol):
    """Keeps bytes under their SHA-256 for as long as somebody holds them.

    A holder is any name that is unique in its tenant, such as ``result:<handle>``. Every method raises
    StorageReadError or StorageWriteError when the store is away. What does not fit its digest any more is
    dropped and never returned.
    """

    async def keep(self, tenant: str, plain: bytes, holder: str, expires_at: datetime | None) -> str:
        """The digest, 64 hexadecimal digits, once a crash cannot lose it; until ``expires_at``, None for ever.

        Keeping again for the same holder moves its end.
        """

    async def read(self, tenant: str, digest: str) -> bytes | None:
        """The bytes, or None where nobody holds them any more."""

    async def let_go(self, tenant: str, digest: str, holder: str) -> None:
        """The holder needs it no more; the last one to go takes it along."""
