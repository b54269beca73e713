"""The audit log in the registry's database: reads the chains, and prunes old records from their front."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, delete, func, select

from cwm.adapters.sql.audit.anchors import anchor_of
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import AUDIT_RECORD, insert_into, record_of
from cwm.adapters.sql.tables.audit import audit_anchors, audit_checkpoints, audit_log
from cwm.adapters.sql.transactions import reading, writing
from cwm.domain.audit_chain import Anchor, AuditRecord, ChainKeys, Checkpoint, Place
from cwm.domain.audit_check import ChainCheck
from cwm.ports.audit import AuditFilter

_ALL: Final = AuditFilter()
_logger = logging.getLogger("cwm.audit")
_log = audit_log.c


class SqlAuditTrail:
    """The port ``AuditTrail`` on SQLite or Postgres."""

    def __init__(self, database: Database, keys: ChainKeys) -> None:
        self.database = database
        self.keys = keys

    @reading
    def tenants(self, connection: Connection) -> list[str]:
        """All tenants with records. Skips through the index from tenant to tenant, because each has many records."""
        tenants: list[str] = []
        for table in (audit_log, audit_anchors, audit_checkpoints):
            after: str | None = None
            while True:
                following = select(func.min(table.c.tenant))
                after = connection.execute(
                    following if after is None else following.where(table.c.tenant > after)
                ).scalar_one()
                if after is None:
                    break
                tenants.append(after)
        return sorted(set(tenants))

    @reading
    def page(
        self, connection: Connection, tenant: str, after: int, limit: int, wanted: AuditFilter = _ALL
    ) -> Sequence[AuditRecord]:
        following = _selection(tenant, wanted).where(_log.seq > after).order_by(_log.seq).limit(limit)
        return [record_of(row) for row in connection.execute(following)]

    @reading
    def newest(
        self, connection: Connection, tenant: str, limit: int, wanted: AuditFilter = _ALL
    ) -> Sequence[AuditRecord]:
        last_first = _selection(tenant, wanted).order_by(_log.seq.desc()).limit(limit)
        return [record_of(row) for row in connection.execute(last_first)]

    @reading
    def anchor(self, connection: Connection, tenant: str) -> Anchor:
        return anchor_of(connection, tenant)

    @writing
    def sign_carried(self, connection: Connection, anchor: Anchor) -> None:
        connection.execute(_put_anchor(connection, self.keys.sign(anchor), or_equal=True))

    @reading
    def checkpoint(self, connection: Connection, tenant: str) -> Checkpoint | None:
        row = connection.execute(
            select(audit_checkpoints).where(audit_checkpoints.c.tenant == tenant)
        ).one_or_none()
        if row is None:
            return None
        return Checkpoint(row.tenant, Place(row.seq, row.digest), row.at, row.key_id, row.signature)

    @writing
    def keep_checkpoint(self, connection: Connection, checkpoint: Checkpoint) -> bool:
        values = {
            "tenant": checkpoint.tenant,
            "seq": checkpoint.place.seq,
            "digest": checkpoint.place.digest,
            "at": checkpoint.at,
            "key_id": checkpoint.key_id,
            "signature": checkpoint.signature,
        }
        statement = _insert_or_advance(connection, audit_checkpoints, values, "seq")
        return connection.execute(statement).rowcount == 1

    @writing
    def prune(self, connection: Connection, tenant: str, before: datetime, limit: int) -> int:
        """Delete records older than ``before`` and sign a new anchor, in one transaction: no crash separates the two.

        Stops at a damaged record: an anchor after it would vouch for a record that cannot be checked any more.
        """
        first = _selection(tenant, _ALL).order_by(_log.seq).limit(limit + 1)
        front = [record_of(row) for row in connection.execute(first)]
        begins = anchor_of(connection, tenant)
        check, past = ChainCheck(self.keys, begins), begins.pruned
        for record in front[:-1]:
            check.take(record)
            if record.event.timestamp >= before:
                break
            if not check.is_whole:
                _logger.warning(
                    "record %d of the audit log of %s is damaged: it and the records after it are not pruned "
                    "(cwm audit verify)",
                    record.seq,
                    tenant,
                )
                break
            past = record.place
        if past == begins.pruned:
            return 0
        moved = replace(begins, pruned=past, carried_through=check.carried_through)
        if moved.carried_through <= past.seq:
            moved = replace(moved, carried_digest="")
        connection.execute(_put_anchor(connection, self.keys.sign(moved)))
        deletion = connection.execute(delete(audit_log).where(_log.tenant == tenant, _log.seq <= past.seq))
        return deletion.rowcount


def _selection(tenant: str, wanted: AuditFilter) -> Select[Any]:
    conditions: list[ColumnElement[bool]] = [_log.tenant == tenant]
    if wanted.since is not None:
        conditions.append(_log.timestamp >= wanted.since)
    if wanted.until is not None:
        conditions.append(_log.timestamp < wanted.until)
    if wanted.before is not None:
        conditions.append(_log.seq < wanted.before)
    for column, value in (
        (_log.event, wanted.event),
        (_log.subject, wanted.subject),
        (_log.outcome, wanted.outcome),
        (_log.session_id, wanted.session_id),
        (_log.window_name, wanted.window_name),
    ):
        if value is not None:
            conditions.append(column == value)
    return select(*AUDIT_RECORD).where(*conditions)


def _put_anchor(connection: Connection, anchor: Anchor, *, or_equal: bool = False) -> Any:
    values = {
        "tenant": anchor.tenant,
        "pruned_through": anchor.pruned.seq,
        "pruned_digest": anchor.pruned.digest,
        "carried_through": anchor.carried_through,
        "key_id": anchor.key_id,
        "signature": anchor.signature,
    }
    return _insert_or_advance(connection, audit_anchors, values, "pruned_through", or_equal=or_equal)


def _insert_or_advance(
    connection: Connection, table: Any, values: dict[str, Any], column: str, *, or_equal: bool = False
) -> Any:
    """Insert the row, or replace the tenant's row if that has a smaller value in ``column``, ``or_equal``."""
    insertion = insert_into(connection, table).values(values)
    current, new = table.c[column], insertion.excluded[column]
    return insertion.on_conflict_do_update(
        index_elements=["tenant"], set_=values, where=current <= new if or_equal else current < new
    )
