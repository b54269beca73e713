"""What turns cost, by tenant and hour. It has no reference to turns: those that are deleted stay in the sum."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table

from cwm.adapters.sql.tables.columns import UtcDateTime, metadata, required, tenant

turn_sums = Table(
    "turn_sums",
    metadata,
    tenant(),
    Column("hour", UtcDateTime, primary_key=True),
    required("turns", BigInteger),
    required("prompt", BigInteger),
    required("cached", BigInteger),
    required("cold", BigInteger),
    required("cold_ms", BigInteger),
    Index(None, "hour"),
)
