"""Snapshots: stored once per tenant and content, while a window or an intent needs them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Insert, Table, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from cwm.adapters.sql.tables.gateways import intents
from cwm.adapters.sql.tables.sessions import canaries, snapshots
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.turns.packed import Delta, compress, join
from cwm.adapters.sql.vault import CLEAR, Vault
from cwm.domain.canary import Canary
from cwm.domain.errors import StorageCorruptionError
from cwm.domain.window import Snapshot

# Built once, because building it takes longer than running it.
_FOUND: Final = select(snapshots.c.packed, snapshots.c.token_count).where(
    snapshots.c.tenant == bindparam("of_tenant"), snapshots.c.id == bindparam("of_id")
)


def put(connection: Connection, table: Table, values: dict[str, Any]) -> None:
    """Insert the row, or replace its non-key columns; either way it is locked until the commit."""
    connection.execute(upsert(connection.dialect.name, table), values)


@cache
def upsert(dialect: str, table: Table) -> Insert:
    """The statement of :func:`put`."""
    row = (sqlite if dialect == "sqlite" else postgresql).insert(table)
    keys = table.primary_key.columns.keys()
    content = {column.name: row.excluded[column.name] for column in table.c if column.name not in keys}
    statement: Insert = row.on_conflict_do_update(index_elements=keys, set_=content)
    return statement


def keep(connection: Connection, tenant: str, token_ids: Sequence[int], vault: Vault = CLEAR) -> str:
    """Store the ids and return their snapshot's id. This also repairs a damaged stored copy."""
    packed, digest = compress(token_ids)
    snapshot_id = vault.name(tenant, digest)
    sealed = vault.seal(packed, "snapshot", tenant, snapshot_id)
    row = {"tenant": tenant, "id": snapshot_id, "token_count": len(token_ids), "packed": sealed}
    put(connection, snapshots, row)
    return snapshot_id


def read(connection: Connection, tenant: str, snapshot_id: str, vault: Vault) -> Snapshot:
    row = connection.execute(_FOUND, {"of_tenant": tenant, "of_id": snapshot_id}).one_or_none()
    if row is None:
        raise StorageCorruptionError("The stored token ids of a window are gone.", snapshot_id=snapshot_id)
    packed = vault.open(row.packed, "snapshot", tenant, snapshot_id)
    delta = Delta(packed, row.token_count, row.token_count)
    token_ids = join(
        [delta], lambda digest: snapshot_id in vault.names(tenant, digest), snapshot_id=snapshot_id
    )
    return Snapshot(snapshot_id, tenant, token_ids, snapshot_id)


def put_canary(connection: Connection, key: tuple[str, str, str], canary: Canary, vault: Vault) -> None:
    """``key``: tenant, snapshot id and cache salt, as in :func:`canary_content`."""
    put_canary_content(connection, key, canary.as_dict(), canary.origin.value, vault)


def put_canary_content(
    connection: Connection, key: tuple[str, str, str], content: Any, origin: str | None, vault: Vault
) -> None:
    if vault:
        content = vault.seal_text(json.dumps(content), "canary", *key)
    row = dict(zip(("tenant", "snapshot_id", "cache_salt"), key, strict=True))
    put(connection, canaries, {**row, "content": content, "origin": origin})


def canary_content(content: Any, vault: Vault, *key: str) -> Any:
    """What a row with this primary key has."""
    return json.loads(vault.open_text(content, "canary", *key)) if isinstance(content, str) else content


def lock(connection: Connection, tenant: str, snapshot_id: str) -> None:
    """Wait for transactions that share or drop the snapshot, and lock it. SQLite has one writer anyway."""
    connection.execute(
        select(snapshots.c.id)
        .where(snapshots.c.tenant == tenant, snapshots.c.id == snapshot_id)
        .with_for_update()
    )


def drop_unused(connection: Connection, tenant: str, snapshot_id: str) -> None:
    """Remove the snapshot unless a window or an intent refers to it; the caller holds :func:`lock`."""
    used = (
        select(windows.c.name)
        .where(windows.c.tenant == tenant, windows.c.snapshot_id == snapshot_id)
        .exists()
    )
    needed = (
        select(intents.c.id).where(intents.c.tenant == tenant, intents.c.snapshot_id == snapshot_id).exists()
    )
    connection.execute(
        delete(snapshots).where(snapshots.c.tenant == tenant, snapshots.c.id == snapshot_id, ~used, ~needed)
    )
