"""Steps of a transaction on contents and their holders; the transaction first locks the tenant's contents.

Statements are built once, because building one takes longer than running it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, delete, exists, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from cwm.adapters.sql.tables.contents import content_holders, content_usage, contents
from cwm.domain.contents import over_quota

_DIALECTS: Final[Mapping[str, Any]] = {"sqlite": sqlite, "postgresql": postgresql}


def _upsert_holder(dialect: Any) -> Any:
    row = dialect.insert(content_holders)
    return row.on_conflict_do_update(
        index_elements=["tenant", "digest", "holder"], set_={"expires_at": row.excluded.expires_at}
    )


_THIS_CONTENT: Final = and_(
    contents.c.tenant == bindparam("of_tenant"), contents.c.digest == bindparam("of_digest")
)
_ITS_HOLDERS: Final = and_(
    content_holders.c.tenant == bindparam("of_tenant"), content_holders.c.digest == bindparam("of_digest")
)
_FIRST_USE: Final = {
    name: dialect.insert(content_usage).values(used_bytes=0).on_conflict_do_nothing()
    for name, dialect in _DIALECTS.items()
}
_LOCK: Final = (
    select(content_usage.c.used_bytes)
    .where(content_usage.c.tenant == bindparam("of_tenant"))
    .with_for_update()
)
_COUNT: Final = (
    update(content_usage)
    .where(content_usage.c.tenant == bindparam("of_tenant"))
    .values(used_bytes=content_usage.c.used_bytes + bindparam("more"))
)
_EXISTS: Final = select(contents.c.digest).where(_THIS_CONTENT)
_CURRENT: Final = select(
    contents.c.size_bytes, (contents.c.stored == bindparam("bytes")).label("is_same")
).where(_THIS_CONTENT)
_ADD: Final = insert(contents)
_REPLACE: Final = (
    update(contents).where(_THIS_CONTENT).values(stored=bindparam("bytes"), size_bytes=bindparam("size"))
)
_ADD_HOLDER: Final = {name: _upsert_holder(dialect) for name, dialect in _DIALECTS.items()}
_DROP_HOLDER: Final = delete(content_holders).where(
    _ITS_HOLDERS, content_holders.c.holder == bindparam("of_holder")
)
_DROP_HOLDERS: Final = delete(content_holders).where(_ITS_HOLDERS)
_DROP: Final = (
    delete(contents)
    .where(_THIS_CONTENT, contents.c.stored == bindparam("bytes"))
    .returning(contents.c.size_bytes)
)
_DROP_UNHELD: Final = (
    delete(contents)
    .where(
        _THIS_CONTENT,
        ~exists().where(
            content_holders.c.tenant == contents.c.tenant,
            content_holders.c.digest == contents.c.digest,
            or_(content_holders.c.expires_at.is_(None), content_holders.c.expires_at > bindparam("at")),
        ),
    )
    .returning(contents.c.size_bytes)
)


def lock(connection: Connection, tenant: str) -> int:
    """Lock the tenant's contents until the transaction ends; return the bytes that they take."""
    used = connection.execute(_LOCK, {"of_tenant": tenant}).scalar_one_or_none()
    if used is None:
        connection.execute(_FIRST_USE[connection.dialect.name], {"tenant": tenant})
        used = connection.execute(_LOCK, {"of_tenant": tenant}).scalar_one()
    return int(used)


def is_there(connection: Connection, tenant: str, digest: str) -> bool:
    return connection.execute(_EXISTS, {"of_tenant": tenant, "of_digest": digest}).first() is not None


def put(
    connection: Connection, tenant: str, digest: str, stored: bytes, quota_bytes: int | None, at: datetime
) -> None:
    """Store ``stored`` if it is not there; the caller adds a holder in the same transaction. Raises CWM-4003."""
    which = {"of_tenant": tenant, "of_digest": digest, "bytes": stored}
    used = lock(connection, tenant)
    current = connection.execute(_CURRENT, which).first()
    if current is not None and current.is_same:
        return
    if quota_bytes is not None and used - _size(current) + len(stored) > quota_bytes:
        drop_ended(connection, tenant, at)
        used, current = lock(connection, tenant), connection.execute(_CURRENT, which).first()
        if used - _size(current) + len(stored) > quota_bytes:
            raise over_quota(used - _size(current), len(stored), quota_bytes)
    if current is None:
        row = {"tenant": tenant, "digest": digest, "stored": stored, "size_bytes": len(stored)}
        connection.execute(_ADD, row)
    else:
        connection.execute(_REPLACE, {**which, "size": len(stored)})
    _count(connection, tenant, len(stored) - _size(current))


def add_holder(
    connection: Connection, tenant: str, digest: str, holder: str, expires_at: datetime | None
) -> None:
    row = {"tenant": tenant, "digest": digest, "holder": holder, "expires_at": expires_at}
    connection.execute(_ADD_HOLDER[connection.dialect.name], row)


def drop_holder(connection: Connection, tenant: str, digest: str, holder: str) -> None:
    which = {"of_tenant": tenant, "of_digest": digest, "of_holder": holder}
    connection.execute(_DROP_HOLDER, which)


def drop_unheld(connection: Connection, tenant: str, digests: Iterable[str], at: datetime) -> list[str]:
    """Delete those of ``digests`` that have no holder at ``at``, and return them."""
    return _drop(connection, tenant, digests, _DROP_UNHELD, {"at": at})


def drop(connection: Connection, tenant: str, digest: str, stored: bytes) -> bool:
    """Delete the content if it equals ``stored``; whether it did."""
    return bool(_drop(connection, tenant, [digest], _DROP, {"bytes": stored}))


def drop_ended(connection: Connection, tenant: str, at: datetime) -> list[str]:
    """Delete expired holders, then the contents without a holder; return the contents' digests."""
    ended = (
        delete(content_holders)
        .where(content_holders.c.tenant == tenant, content_holders.c.expires_at <= at)
        .returning(content_holders.c.digest)
    )
    return drop_unheld(connection, tenant, set(connection.execute(ended).scalars()), at)


def _drop(
    connection: Connection, tenant: str, digests: Iterable[str], statement: Any, parameters: Mapping[str, Any]
) -> list[str]:
    dropped, freed = [], 0
    for digest in sorted(digests):
        which = {"of_tenant": tenant, "of_digest": digest}
        size = connection.execute(statement, {**which, **parameters}).scalar_one_or_none()
        if size is not None:
            dropped.append(digest)
            freed += int(size)
            connection.execute(_DROP_HOLDERS, which)
    if freed:
        _count(connection, tenant, -freed)
    return dropped


def _size(row: Row[Any] | None) -> int:
    return 0 if row is None else int(row.size_bytes)


def _count(connection: Connection, tenant: str, more: int) -> None:
    connection.execute(_COUNT, {"of_tenant": tenant, "more": more})
