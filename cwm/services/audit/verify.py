"""Verifies the audit log: every record of a tenant's chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cwm.domain.audit_chain import Anchor, ChainKeys, Checkpoint
from cwm.domain.audit_check import ChainCheck, Damage, Finding, Verdict
from cwm.ports.audit import AuditTrail

_PAGE: Final = 1_000
_LOOKS: Final = 3
_BEFORE_ALL: Final = -(2**63)
"""Lower than any number, including those that no gateway assigns."""


@dataclass(frozen=True, slots=True)
class VerifyAudit:
    trail: AuditTrail
    keys: ChainKeys

    async def __call__(self, tenant: str, known_checkpoints: Sequence[Checkpoint] = ()) -> Verdict:
        """Verify the chain of ``tenant``, also while gateways extend it. CWM-4002.

        ``known_checkpoints``: checkpoints that were kept elsewhere; they need no signature, the one in the database does.
        """
        for _ in range(_LOOKS - 1):
            anchor = await self.trail.anchor(tenant)
            verdict = await self._look(anchor, known_checkpoints)
            # If the anchor moved, records were pruned meanwhile and are not missing: verify again.
            if verdict.whole or anchor == await self.trail.anchor(tenant):
                return verdict
        return await self._look(await self.trail.anchor(tenant), known_checkpoints)

    async def _look(self, anchor: Anchor, known_checkpoints: Sequence[Checkpoint]) -> Verdict:
        tenant = anchor.tenant
        points = [point for point in known_checkpoints if point.tenant == tenant]
        stored, unsigned = await self.trail.checkpoint(tenant), []
        if stored is not None and self.keys.signed(stored):
            points.append(stored)
        elif stored is not None:
            unsigned.append(Finding(Damage.UNSIGNED, stored.place.seq, stored.place.seq))
        # Records before the anchor were pruned, so their checkpoints cannot be compared.
        points = [point for point in points if point.place.seq > anchor.pruned.seq]
        check, after = ChainCheck(self.keys, anchor, points), _BEFORE_ALL
        while page := await self.trail.page(tenant, after, _PAGE):
            for record in page:
                check.take(record)
            after = page[-1].seq
        verdict = check.verdict()
        if not unsigned:
            return verdict
        return replace(verdict, findings=(*unsigned, *verdict.findings))
