"""Examines where each audit chain begins and ends; ``cwm audit verify`` checks what is between."""

from __future__ import annotations

from typing import Final

from cwm.domain.audit_chain import CARRIED, ChainKeys
from cwm.domain.errors import CwmError
from cwm.ports.audit import AuditTrail
from cwm.services.health.findings import Findings

_NAME: Final = "audit"


async def examine_audit(findings: Findings, trail: AuditTrail, keys: ChainKeys) -> None:
    """One finding: whether gateways signed the first and the last record of every chain, and its checkpoint."""
    try:
        tenants = await trail.tenants()
        doubtful = [tenant for tenant in tenants if not await _holds(trail, keys, tenant)]
    except CwmError:
        findings.skipped("the audit log cannot be read", _NAME)
        return
    if doubtful:
        findings.fault(
            _NAME,
            f"No gateway with this secret signed where the audit chain begins or ends: {', '.join(doubtful)}.",
            "Run `cwm audit verify`, which names the records.",
        )
    else:
        findings.ok(_NAME, f"{len(tenants)} audit chains begin and end as gateways signed them")


async def _holds(trail: AuditTrail, keys: ChainKeys, tenant: str) -> bool:
    anchor, checkpoint = await trail.anchor(tenant), await trail.checkpoint(tenant)
    for record in (*await trail.page(tenant, 0, 1), *await trail.newest(tenant, 1)):
        if not keys.knows(record.key_id) or not keys.holds(record):
            return False
        if record.key_id == CARRIED and not keys.signed(anchor):
            return False
    if not keys.signed_anchor(anchor) or (checkpoint is not None and not keys.signed(checkpoint)):
        return False
    if checkpoint is None or checkpoint.place.seq <= anchor.pruned.seq:
        return True
    return any(
        record.place == checkpoint.place for record in await trail.page(tenant, checkpoint.place.seq - 1, 1)
    )
