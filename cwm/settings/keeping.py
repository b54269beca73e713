"""What is kept, where, for how long and how much of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, field_validator

from cwm.domain.eviction import Eviction
from cwm.settings.fields import Bytes, Count, Gigabytes, Megabytes, Seconds
from cwm.settings.group import Group
from cwm.settings.urls import database_url, redis_url, sqlite_url


def _readable(read: Callable[[str], str]) -> AfterValidator:
    def check(url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            read(url.get_secret_value())
        return url

    return AfterValidator(check)


DatabaseUrl = Annotated[SecretStr | None, _readable(database_url)]
RedisUrl = Annotated[SecretStr | None, _readable(redis_url)]


class Database(Group):
    """Where the registry lives."""

    title = "database"

    database_url: DatabaseUrl = Field(
        None, description="Postgres URL (postgresql://user:password@host/db). Unset: SQLite."
    )
    db_path: Path = Field(Path("~/.cwm/cwm.db"), description="SQLite file, when no database URL is set.")

    @field_validator("db_path")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()

    def url(self) -> str:
        """SQLAlchemy's URL, with the driver CWM uses."""
        if self.database_url is None:
            return sqlite_url(str(self.db_path))
        return database_url(self.database_url.get_secret_value())


class Storage(Group):
    """Tiers of the engine that ``cwm up`` starts."""

    title = "storage"

    storage_path: Path = Field(Path("~/.cwm/storage"), description="Folder of the disk tier.")
    cpu_cache_gb: Gigabytes = Field(8.0, gt=0, description="Size of the CPU tier (LMCache L1) in GB.")
    disk_cache_gb: Gigabytes = Field(
        50.0,
        ge=0,
        description="Most that the disk tier may take in GB; 0 for no limit of its own. Never so much that its disk has "
        "less than a twentieth free (1 GB at least, 10 at most).",
    )
    redis_url: RedisUrl = Field(
        None, description="Redis or Valkey of the shared tier. Unset: an embedded Valkey."
    )
    redis_cache_gb: Gigabytes = Field(4.0, gt=0, description="Memory limit of the embedded Valkey in GB.")

    @field_validator("storage_path")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()


class Retention(Group):
    """How long things are kept, and how often CWM looks after them."""

    title = "retention"

    tenant_quota_gb: Gigabytes = Field(
        0, ge=0, description="Most a tenant's guaranteed windows may take in GB; 0 for no limit."
    )
    session_ttl_seconds: Seconds = Field(
        7 * 86_400, ge=0, description="A session without a turn for so long expires; 0 for never."
    )
    session_kept_seconds: Seconds = Field(
        30 * 86_400, ge=0, description="An expired session is deleted after so long; 0 for never."
    )
    auto_freeze: bool = Field(
        False, description="Freeze a session that would expire, as a best-effort window `expired_<session>`."
    )
    reconcile_seconds: Seconds = Field(
        60.0, gt=0, description="How often what crashes left is finished, and pins are compared."
    )
    patrol_windows: Count = Field(
        8, ge=0, description="Guaranteed windows read back at each of these looks, each once an hour at most."
    )

    def quota_bytes(self) -> int | None:
        return round(self.tenant_quota_gb * 2**30) or None


class Shared(Group):
    """What several gateways share of the agents that they serve."""

    title = "shared"

    shared_store_url: RedisUrl = Field(
        None,
        description="Redis or Valkey that several gateways share; unset: CWM_REDIS_URL where that is set, "
        "else this process alone.",
    )
    agent_session_ttl_seconds: Seconds = Field(
        1800.0, ge=60, description="An agent session that nobody uses for so long ends."
    )
    agent_session_limit: Count = Field(
        10_000,
        ge=1,
        description="Most agent sessions kept in process; of the tenant with most, the one idle longest makes room.",
    )


class StoredResults(Group):
    """Tool results that are stored for agents to read on."""

    title = "stored_results"

    result_quota_mb: Megabytes = Field(
        1024.0, ge=0, description="Most that the stored results of one user may take in MB; 0 for no limit."
    )
    cursor_ttl_seconds: Seconds = Field(
        600.0, ge=1, le=30 * 86_400, description="For how long a cursor into a stored result is good."
    )

    def quota_bytes(self) -> int | None:
        return round(self.result_quota_mb * 2**20) or None


class Context(Group):
    """Shared context and stored results: what they may take, in memory and in the shared store."""

    title = "context"

    context_memory_mb: Megabytes = Field(
        100.0,
        gt=0,
        description="Memory in MB for what is used often; kept under 90 % of it. Taken over while running.",
    )
    context_eviction: Eviction = Field(
        Eviction.LRU,
        description="What leaves memory first: not used for longest (lru), used least often (lfu), ends soonest "
        "(ttl), lowest priority, or largest (size). Taken over while running.",
    )
    context_compress_bytes: Bytes = Field(
        1024, ge=0, description="Values of more bytes are compressed where that makes them smaller."
    )
    context_value_kb: Count = Field(1024, ge=1, description="Largest value of a key, in KB of JSON.")
    context_versions: Count = Field(
        1000,
        ge=1,
        description="So many versions of a scope can be read again; those that a snapshot shows, too.",
    )
    context_snapshots: Count = Field(
        100, ge=1, description="Most snapshots of a scope; the oldest makes room for one more."
    )
    context_quota_mb: Megabytes = Field(
        1024.0,
        ge=0,
        description="Most that values of a tenant may take in the shared store in MB, past versions and stored "
        "results included, keys not; 0 for no limit.",
    )

    def memory_bytes(self) -> int:
        return round(self.context_memory_mb * 2**20)

    def quota_bytes(self) -> int | None:
        return round(self.context_quota_mb * 2**20) or None
