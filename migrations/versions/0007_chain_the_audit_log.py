"""Chain the audit log"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from cwm.adapters.sql.tables.columns import UtcDateTime
from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.audit_chain import AuditRecord, Place, carried
from cwm.domain.origin import Face, Origin

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_AT_ONCE = 1000
_TEXTS = ("tenant", "subject", "event", "outcome", "session_id", "window_name", "severity")


def upgrade() -> None:
    """Carry existing rows over, in their order, chained under a public key."""
    op.drop_index("ix_audit_log_tenant_timestamp_id", table_name="audit_log")
    op.rename_table("audit_log", "audit_log_unchained")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER INDEX pk_audit_log RENAME TO pk_audit_log_unchained")
    op.create_table(
        "audit_log",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("timestamp", sa.DateTime(timezone=True), nullable=False),
        sa.Column("subject", Text, nullable=False),
        sa.Column("event", Text, nullable=False),
        sa.Column("outcome", Text, nullable=False),
        sa.Column("session_id", Text, nullable=True),
        sa.Column("window_name", Text, nullable=True),
        sa.Column("severity", Text, nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("face", Text, nullable=False),
        sa.Column("address", Text, nullable=True),
        sa.Column("user_agent", Text, nullable=True),
        sa.Column("previous", Text, nullable=False),
        sa.Column("key_id", Text, nullable=False),
        sa.Column("digest", Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "seq", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_tenant_timestamp_seq", "audit_log", ["tenant", "timestamp", "seq"])
    op.create_table(
        "audit_anchors",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("pruned_through", sa.BigInteger(), nullable=False),
        sa.Column("pruned_digest", Text, nullable=False),
        sa.Column("carried_through", sa.BigInteger(), nullable=False),
        sa.Column("key_id", Text, nullable=False),
        sa.Column("signature", Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_audit_anchors"),
    )
    op.create_table(
        "audit_checkpoints",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("digest", Text, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("key_id", Text, nullable=False),
        sa.Column("signature", Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_audit_checkpoints"),
    )
    _carry(op.get_bind())
    op.drop_table("audit_log_unchained")


def _carry(connection: sa.Connection) -> None:
    """Chain the rows under a public key: once a gateway appends a record, its own key vouches for the whole chain."""
    ends: dict[str, Place] = {}
    chained = sa.table(
        "audit_log",
        sa.column("timestamp", UtcDateTime()),
        sa.column("details", sa.JSON()),
        *(sa.column(name) for name in (*_TEXTS, "seq", "face", "previous", "key_id", "digest")),
    )
    unchained = sa.table(
        "audit_log_unchained",
        sa.column("id", sa.BigInteger()),
        sa.column("timestamp", UtcDateTime()),
        sa.column("details", sa.JSON()),
        *(sa.column(name) for name in _TEXTS),
    )
    following, last = sa.select(unchained).order_by(unchained.c.id).limit(_AT_ONCE), 0
    while rows := connection.execute(following.where(unchained.c.id > last)).all():
        last, records = rows[-1].id, []
        for row in rows:
            record = carried(_event(row), ends.get(row.tenant, Place()))
            ends[row.tenant] = record.place
            records.append(_values(record))
        connection.execute(chained.insert(), records)
    anchors = sa.text(
        "INSERT INTO audit_anchors (tenant, pruned_through, pruned_digest, carried_through, key_id, signature) "
        "VALUES (:tenant, 0, '', :seq, '', '')"
    )
    for tenant, place in ends.items():
        connection.execute(anchors, {"tenant": tenant, "seq": place.seq})


def _event(row: sa.Row[Any]) -> AuditEvent:
    values = {name: value for name, value in row._asdict().items() if name != "id"}
    return AuditEvent(**{**values, "severity": Severity(row.severity)}, origin=Origin(Face.GATEWAY))


def _values(record: AuditRecord) -> dict[str, Any]:
    event = record.event
    return {
        **{name: getattr(event, name) for name in (*_TEXTS, "timestamp", "details")},
        "seq": record.seq,
        "face": event.origin.face.value,
        "previous": record.previous,
        "key_id": record.key_id,
        "digest": record.digest,
    }
