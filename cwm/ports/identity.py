"""Who is calling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cwm.domain.principal import Principal


class Identity(Protocol):
    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The caller behind these request headers (names in lower case)."""
