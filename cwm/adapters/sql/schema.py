"""Upgrades a database's schema to this version's, and refuses to work on any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from cwm import shipped
from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.failures import coded_errors
from cwm.adapters.sql.schema_error import SchemaError
from cwm.domain.errors import StorageReadError, StorageWriteError

if TYPE_CHECKING:
    from alembic.config import Config

REVISIONS: Final = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
    "0014",
    "0015",
    "0016",
    "0017",
    "0018",
    "0019",
    "0020",
    "0021",
    "0022",
    "0023",
    "0024",
    "0025",
    "0026",
)
"""Every migration, oldest first. Listed here because Alembic, which knows them too, takes 0.1 s to load."""

_LOCK: Final = 0x43574D  # any number, the same in every process


async def upgrade(url: str) -> list[str]:
    """Apply the missing revisions, all or none, and return them, oldest first.

    Concurrent upgrades wait for each other. Raises SchemaError if the schema is newer than this code, and CWM-4001
    if the database cannot be reached or written.
    """
    database = open_database(url)
    try:
        with coded_errors(StorageWriteError):
            return await database.write(_upgrade)
    finally:
        await database.dispose()


async def require_current(database: Database) -> None:
    """Raise SchemaError unless the schema is this version's. Raises CWM-4002 if it cannot be read."""
    with coded_errors(StorageReadError):
        revision = await database.read(_revision)
    if revision is None:
        raise SchemaError("The database has no CWM tables yet: run `cwm migrate`.")
    _refuse_unknown(revision)
    if revision != REVISIONS[-1]:
        raise SchemaError(
            f"The database's schema is {revision}, this version of CWM needs {REVISIONS[-1]}: run `cwm migrate`."
        )


async def is_empty(database: Database) -> bool:
    """Whether the database has no tables. Raises CWM-4002."""
    with coded_errors(StorageReadError):
        return await database.read(lambda connection: not inspect(connection).get_table_names())


def configuration(connection: Connection, applied: list[str]) -> Config:
    """Alembic's configuration for CWM's migrations; each one adds itself to ``applied`` when it runs."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(shipped.folder("migrations")).replace("%", "%%"))
    config.attributes.update(connection=connection, applied=applied)
    return config


def _upgrade(connection: Connection) -> list[str]:
    from alembic import command

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    revision = _revision(connection)
    if revision is not None:
        _refuse_unknown(revision)
    applied: list[str] = []
    command.upgrade(configuration(connection, applied), "head")
    return applied


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def _refuse_unknown(revision: str) -> None:
    if revision not in REVISIONS:
        raise SchemaError(
            f"The database's schema is {revision}, which this version of CWM does not know: "
            "run the newer CWM that created it (`cwm migrate` does not downgrade)."
        )
