"""How much is stored of what each of a tenant's people said. Errors are those of the registry: CWM-4002."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class StoredBytes(Protocol):
    async def by_owner(self, tenant: str) -> Mapping[str, int]:
        """Bytes by owner: of turns with their token ids and messages, responses, and conversations of OpenAI's API, compressed."""
