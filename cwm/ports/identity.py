"""Authenticates callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cwm.domain.principal import Principal


class Identity(Protocol):
    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The principal behind these request headers (names in lower case).

        Raises UnauthenticatedError without valid credentials; CWM-5005 or CWM-4002 when they cannot be checked now.
        """
