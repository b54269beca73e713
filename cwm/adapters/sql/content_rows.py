"""What a transaction does with contents and their holders; it locks the tenant's first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection, delete, exists, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from cwm.adapters.sql.tables import content_holders, content_usage, contents


def lock(connection: Connection, tenant: str) -> int:
    """Let nobody else change the tenant's contents until the transaction ends; the bytes that they take."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    nothing = dialect.insert(content_usage).values(tenant=tenant, used_bytes=0).on_conflict_do_nothing()
    connection.execute(nothing)
    locked = select(content_usage.c.used_bytes).where(content_usage.c.tenant == tenant).with_for_update()
    return int(connection.execute(locked).scalar_one())


def is_there(connection: Connection, tenant: str, digest: str) -> bool:
    row = select(contents.c.digest).where(contents.c.tenant == tenant, contents.c.digest == digest)
    return connection.execute(row).first() is not None


def add(connection: Connection, tenant: str, digest: str, stored: bytes) -> None:
    connection.execute(
        insert(contents).values(tenant=tenant, digest=digest, stored=stored, size_bytes=len(stored))
    )
    _count(connection, tenant, len(stored))


def add_holder(
    connection: Connection, tenant: str, digest: str, holder: str, expires_at: datetime | None
) -> None:
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(
        dialect.insert(content_holders)
        .values(tenant=tenant, digest=digest, holder=holder, expires_at=expires_at)
        .on_conflict_do_update(index_elements=["tenant", "digest", "holder"], set_={"expires_at": expires_at})
    )


def drop_holder(connection: Connection, tenant: str, digest: str, holder: str) -> None:
    connection.execute(
        delete(content_holders).where(
            content_holders.c.tenant == tenant,
            content_holders.c.digest == digest,
            content_holders.c.holder == holder,
        )
    )


def drop_unheld(connection: Connection, tenant: str, digests: Iterable[str], at: datetime) -> list[str]:
    """Those of ``digests`` that nobody holds at ``at`` go, and are returned."""
    held = exists().where(
        content_holders.c.tenant == contents.c.tenant,
        content_holders.c.digest == contents.c.digest,
        or_(content_holders.c.expires_at.is_(None), content_holders.c.expires_at > at),
    )
    return _drop(connection, tenant, digests, ~held)


def drop(connection: Connection, tenant: str, digest: str) -> None:
    _drop(connection, tenant, [digest])


def drop_ended(connection: Connection, tenant: str, at: datetime) -> list[str]:
    """Whatever every hold of has ended goes, and is returned."""
    ended = (
        delete(content_holders)
        .where(content_holders.c.tenant == tenant, content_holders.c.expires_at <= at)
        .returning(content_holders.c.digest)
    )
    return drop_unheld(connection, tenant, set(connection.execute(ended).scalars()), at)


def _drop(connection: Connection, tenant: str, digests: Iterable[str], *only: object) -> list[str]:
    wanted = sorted(digests)
    if not wanted:
        return []
    # One after the other: databases bound how many values a statement takes.
    gone, freed = [], 0
    for digest in wanted:
        row = (
            delete(contents)
            .where(contents.c.tenant == tenant, contents.c.digest == digest, *only)  # type: ignore[arg-type]
            .returning(contents.c.size_bytes)
        )
        size = connection.execute(row).scalar_one_or_none()
        if size is not None:
            gone.append(digest)
            freed += int(size)
            connection.execute(
                delete(content_holders).where(
                    content_holders.c.tenant == tenant, content_holders.c.digest == digest
                )
            )
    _count(connection, tenant, -freed)
    return gone


def _count(connection: Connection, tenant: str, size: int) -> None:
    if size:
        connection.execute(
            update(content_usage)
            .where(content_usage.c.tenant == tenant)
            .values(used_bytes=content_usage.c.used_bytes + size)
        )
