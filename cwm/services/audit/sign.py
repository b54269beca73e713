"""Signs the records that are older than a tenant's chain, once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from cwm.domain.audit import AuditEvent
from cwm.domain.audit_check import Finding, Verdict
from cwm.ports.audit import AuditLog, AuditTrail
from cwm.ports.clock import Clock
from cwm.services.audit.verify import VerifyAudit

_OPERATOR: Final = "operator"


class Signing(StrEnum):
    NOTHING = "nothing"
    """The chain has no such records, or they are signed already."""
    SIGNED = "signed"
    REFUSED = "refused"
    """The chain is damaged beyond that."""


@dataclass(frozen=True, slots=True)
class SignCarried:
    """For the operator, right after the migration: from then on a change of these records shows."""

    verify: VerifyAudit
    trail: AuditTrail
    audit: AuditLog
    clock: Clock

    async def __call__(self, tenant: str) -> tuple[Signing, Verdict]:
        """Sign and record that; also returns the verdict before. CWM-4001, CWM-4002."""
        verdict = await self.verify(tenant)
        unsigned = verdict.unsigned_carried
        if unsigned is None:
            return Signing.NOTHING, verdict
        if len(verdict.findings) > 1:
            return Signing.REFUSED, verdict
        await self._sign(tenant, unsigned)
        return Signing.SIGNED, verdict

    async def _sign(self, tenant: str, unsigned: Finding) -> None:
        anchor = await self.trail.anchor(tenant)
        (last,) = await self.trail.page(tenant, unsigned.last - 1, 1)
        await self.trail.sign_carried(replace(anchor, carried_through=last.seq, carried_digest=last.digest))
        details = {"first": unsigned.first, "last": last.seq, "digest": last.digest}
        await self.audit.record(
            AuditEvent(self.clock.now(), tenant, _OPERATOR, "audit.sign_carried", "success", details=details)
        )
