"""Reads the audit log of a tenant, for whoever has the scope admin in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cwm.domain.access import AccessScope
from cwm.domain.audit_chain import AuditRecord
from cwm.domain.audit_check import Verdict
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.ports.audit import AuditFilter, AuditTrail
from cwm.services.audit.verify import VerifyAudit

_ADMIN: Final = frozenset({AccessScope.ADMIN})
_MOST: Final = 200


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Records, the newest first. ``next_before``: the number before which further ones are, if there are any."""

    records: Sequence[AuditRecord]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class ReadAudit:
    """``most_verified``: the most records that are verified at once, since whoever asks for it waits."""

    trail: AuditTrail
    verify: VerifyAudit
    most_verified: int = 50_000

    async def __call__(self, principal: Principal, criteria: AuditFilter, limit: int = 50) -> AuditPage:
        """CWM-1003; CWM-4002; CWM-9002 without the scope admin."""
        principal.require(_ADMIN)
        if not 1 <= limit <= _MOST:
            raise InvalidParameterError(f"limit is 1 to {_MOST}.", field="limit", limit=limit)
        records = await self.trail.newest(principal.tenant, limit + 1, criteria)
        return AuditPage(records[:limit], records[limit - 1].seq if len(records) > limit else None)

    async def thaws(
        self, principal: Principal, window_name: str, since: datetime, limit: int = 10
    ) -> Sequence[AuditRecord]:
        """The newest successful thaws of a window, for who sees the window; only one's own without the scope admin. CWM-4002."""
        whose = None if AccessScope.ADMIN in principal.scopes else principal.subject
        criteria = AuditFilter(
            since, event="window_thaw", outcome="success", subject=whose, window_name=window_name
        )
        return await self.trail.newest(principal.tenant, limit, criteria)

    async def verified(self, principal: Principal) -> Verdict | None:
        """Whether the chain is whole; None if it has too many records to verify them here. CWM-4002, CWM-9002."""
        principal.require(_ADMIN)
        last = await self.trail.newest(principal.tenant, 1)
        anchor = await self.trail.anchor(principal.tenant)
        if last and last[0].seq - anchor.pruned.seq > self.most_verified:
            return None
        return await self.verify(principal.tenant)
