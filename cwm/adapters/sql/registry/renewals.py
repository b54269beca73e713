"""Transactions that let a window have KV of a new deployment in place of what it had, and the windows that wait for that."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry import snapshots
from cwm.adapters.sql.registry.window_writes import (
    begin,
    end_one,
    forget_references,
    intent_about,
    is_still,
    owe,
    refer,
    same_content,
    window_row,
)
from cwm.adapters.sql.rows import WINDOW, window_of
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.transactions import reading, writing
from cwm.adapters.sql.vault import Vault
from cwm.adapters.sql.window_list import terms as window_terms
from cwm.domain.canary import Canary
from cwm.domain.engine import KV_FIELDS, EngineIdentity
from cwm.domain.intent import Debt, Intent, Operation
from cwm.domain.upgrade import Upgrade, WindowCounts
from cwm.domain.window import Durability, Retention, Window
from cwm.ports.registry import StoredChunks


class RenewalRecords:
    database: Database
    holder: str
    vault: Vault

    @writing
    def begin_renewal(
        self, connection: Connection, window: Window, cache_salt: str, debt: Debt, at: datetime
    ) -> Intent | None:
        row = window_row(connection, window.tenant, window.name, lock=True)
        if row is None or row.durability == Durability.PENDING.value or not same_content(row, window):
            return None
        under = replace(window_of(row), cache_salt=cache_salt)
        return begin(connection, intent_about(under, Operation.RELEASE, self.holder, at, debt))

    @writing
    def finish_renewal(
        self,
        connection: Connection,
        window: Window,
        renewed: Window,
        stored: StoredChunks,
        intent: Intent,
        at: datetime,
        canary: Canary | None = None,
        debt: Debt | None = None,
    ) -> tuple[Window, Intent | None] | None:
        statement = (
            update(windows)
            .where(
                windows.c.tenant == window.tenant,
                is_still(window),
                windows.c.durability != Durability.PENDING.value,
            )
            .values(
                durability=Durability.DURABLE.value,
                failure=None,
                cache_salt=renewed.cache_salt,
                identity=renewed.identity.as_dict(),
                pinned=renewed.pinned,
                block_count=len(stored.chunks),
                total_size_bytes=stored.total_size_bytes,
                storage_tier=stored.storage_tier.value,
                tiers=stored.tiers,
                updated_at=at,
                proven_at=at,
            )
            .returning(*WINDOW)
        )
        row = connection.execute(statement).one_or_none()
        if row is None:
            return None
        durable = window_of(row)
        window_terms.resize(connection, durable)
        forget_references(connection, window.tenant, window.name)
        refer(connection, durable, stored.chunks)
        if canary is not None:
            key = (durable.tenant, durable.snapshot_id, durable.cache_salt)
            snapshots.put_canary(connection, key, canary, self.vault)
        end_one(connection, intent.tenant, intent.id)
        return durable, owe(connection, window, debt, self.holder, at)

    @reading
    def windows_to_renew_of_every_tenant(
        self, connection: Connection, upgrade: Upgrade, limit: int
    ) -> list[Window]:
        query = select(*WINDOW).where(_to_renew(upgrade)).order_by(windows.c.proven_at, windows.c.name)
        return [window_of(row) for row in connection.execute(query.limit(limit))]

    @reading
    def upgraded_windows_of_every_tenant(self, connection: Connection, upgrade: Upgrade) -> WindowCounts:
        durable = windows.c.durability == Durability.DURABLE.value
        done = and_(_guaranteed(upgrade), durable, ~_is_of_another(upgrade.identity))
        pending = windows.c.durability == Durability.PENDING.value
        being_stored = and_(_guaranteed(upgrade), pending, _is_of_another(upgrade.identity))
        counts = [
            connection.execute(select(func.count()).select_from(windows).where(which)).scalar_one()
            for which in (done, or_(_to_renew(upgrade), being_stored))
        ]
        return WindowCounts(*counts)


def _guaranteed(upgrade: Upgrade) -> ColumnElement[bool]:
    return and_(windows.c.model == upgrade.model, windows.c.retention == Retention.GUARANTEED.value)


def _to_renew(upgrade: Upgrade) -> ColumnElement[bool]:
    stored = and_(windows.c.durability == Durability.DURABLE.value, windows.c.block_count > 0)
    failed = windows.c.durability == Durability.FAILED.value
    return and_(_guaranteed(upgrade), or_(stored, failed), _is_of_another(upgrade.identity))


def _is_of_another(identity: EngineIdentity) -> ColumnElement[bool]:
    """Whether a window was frozen by another deployment: never NULL."""
    fields = []
    for name in KV_FIELDS:
        value, column = getattr(identity, name), windows.c.identity[name]
        stored: ColumnElement[Any] = column.as_integer() if isinstance(value, int) else column.as_string()
        if value == "":
            # Windows from before there was such a fact do not have it.
            stored = func.coalesce(stored, "")
        fields.append(stored.is_distinct_from(value))
    return or_(*fields)
