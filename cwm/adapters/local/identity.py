"""The caller of a gateway without authentication: whoever can reach its loopback socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cwm.domain.access import EVERY
from cwm.domain.principal import Principal


@dataclass(frozen=True, slots=True)
class LocalIdentity:
    """Everyone is the same principal of one tenant and may do everything; only right on a loopback address."""

    tenant: str

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        del headers
        return Principal(self.tenant, "local", EVERY)
