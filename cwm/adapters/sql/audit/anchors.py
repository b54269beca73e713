"""Reads where a tenant's audit chain begins."""

from __future__ import annotations

from sqlalchemy import Connection, select

from cwm.adapters.sql.tables.audit import audit_anchors, audit_log
from cwm.domain.audit_chain import Anchor, Place


def anchor_of(connection: Connection, tenant: str) -> Anchor:
    row = connection.execute(select(audit_anchors).where(audit_anchors.c.tenant == tenant)).one_or_none()
    if row is None:
        return Anchor(tenant)
    pruned, digest = Place(row.pruned_through, row.pruned_digest), None
    if row.carried_through > pruned.seq:
        last_carried = select(audit_log.c.digest).where(
            audit_log.c.tenant == tenant, audit_log.c.seq == row.carried_through
        )
        digest = connection.execute(last_carried).scalar_one_or_none()
    return Anchor(tenant, pruned, row.carried_through, digest or "", row.key_id, row.signature)
