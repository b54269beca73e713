"""The caller of a gateway without authentication: anyone who can reach its loopback socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cwm.domain.access import EVERY
from cwm.domain.principal import Principal


@dataclass(frozen=True, slots=True)
class LocalIdentity:
    """Every caller is the same principal of one tenant with all scopes; only safe on a loopback address."""

    tenant: str

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        del headers
        return Principal(self.tenant, "local", EVERY)
