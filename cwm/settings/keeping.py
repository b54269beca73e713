"""Settings of storage: what is kept, where, for how long, and how much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, SecretStr

from cwm.domain.eviction import Eviction
from cwm.settings.fields import Bytes, Count, Gigabytes, Group, Megabytes, Seconds, UserPath
from cwm.settings.urls import database_url, redis_url, sqlite_url


def _readable(parse: Callable[[str], str]) -> AfterValidator:
    def check(url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            parse(url.get_secret_value())
        return url

    return AfterValidator(check)


DatabaseUrl = Annotated[SecretStr | None, _readable(database_url)]
_KEY_CHARS: Final = 32
RedisUrl = Annotated[SecretStr | None, _readable(redis_url)]


def _long_enough(keys: SecretStr | None) -> SecretStr | None:
    every = keys.get_secret_value().split() if keys else []
    if keys and (not every or min(map(len, every)) < _KEY_CHARS):
        raise ValueError(f"each key needs {_KEY_CHARS} characters; `openssl rand -base64 32` makes one")
    return keys


RegistryKeys = Annotated[SecretStr | None, AfterValidator(_long_enough)]


class Database(Group):
    """The database of the registry."""

    database_url: DatabaseUrl = Field(
        None, description="Postgres URL (postgresql://user:password@host/db); unset: SQLite."
    )
    db_path: UserPath = Field(
        Path("~/.cwm/cwm.db"), description="SQLite file, used when no database URL is set."
    )

    registry_key: RegistryKeys = Field(
        None,
        description="Keys, of 32 characters or more, with which token ids and messages are encrypted in the registry, separated by "
        "white space: the first encrypts, all decrypt. Must be the same on every replica; unset: nothing is encrypted.",
    )

    def registry_keys(self) -> tuple[str, ...]:
        return () if self.registry_key is None else tuple(self.registry_key.get_secret_value().split())

    def url(self) -> str:
        """The URL for SQLAlchemy, with the driver that CWM uses."""
        if self.database_url is None:
            return sqlite_url(str(self.db_path))
        return database_url(self.database_url.get_secret_value())


class Storage(Group):
    """Cache tiers of the engine that ``cwm up`` starts."""

    storage_path: UserPath = Field(Path("~/.cwm/storage"), description="Folder of the disk tier.")
    cpu_cache_gb: Gigabytes = Field(8.0, gt=0, description="Size of the CPU tier (LMCache L1) in GB.")
    disk_cache_gb: Gigabytes = Field(
        50.0,
        ge=0,
        description="Largest size of the disk tier in GB; 0 for no limit of its own. Always leaves 5 % of the disk free, "
        "between 1 and 10 GB.",
    )
    redis_url: RedisUrl = Field(
        None, description="Redis or Valkey URL of the shared tier; unset: an embedded Valkey."
    )
    redis_cache_gb: Gigabytes = Field(4.0, gt=0, description="Memory limit of the embedded Valkey in GB.")


class Retention(Group):
    """How long sessions and windows are kept, and how often CWM checks them."""

    tenant_quota_gb: Gigabytes = Field(
        0, ge=0, description="Storage limit for a tenant's guaranteed windows in GB; 0 for no limit."
    )
    session_ttl_seconds: Seconds = Field(
        7 * 86_400, ge=0, description="A session without a turn for this long expires; 0 for never."
    )
    session_kept_seconds: Seconds = Field(
        30 * 86_400, ge=0, description="An expired session is deleted after this time; 0 for never."
    )
    auto_freeze: bool = Field(
        False, description="Freeze a session before it expires, as a best-effort window `expired_<session>`."
    )
    reconcile_seconds: Seconds = Field(
        60.0,
        gt=0,
        description="Interval of reconciliation, which finishes interrupted operations and compares pins.",
    )
    patrol_windows: Count = Field(
        8,
        ge=0,
        description="Guaranteed windows read back in each reconciliation, each window at most once an hour; and windows of an upgraded model frozen again in each, at least one.",
    )

    def quota_bytes(self) -> int | None:
        return round(self.tenant_quota_gb * 2**30) or None


class Shared(Group):
    """The agent state that several gateways share."""

    shared_store_url: RedisUrl = Field(
        None,
        description="Redis or Valkey URL of the store that gateways share; unset: CWM_REDIS_URL if that is set, "
        "else the memory of this process.",
    )
    agent_session_ttl_seconds: Seconds = Field(
        1800.0, ge=60, description="An agent session unused for this long ends."
    )
    agent_session_limit: Count = Field(
        10_000,
        ge=1,
        description="Maximum number of agent sessions in one process; the longest idle one of the tenant with the most "
        "makes room.",
    )


class StoredResults(Group):
    """Tool results that are stored so that agents can read them later."""

    result_quota_mb: Megabytes = Field(
        1024.0, ge=0, description="Storage limit for the stored results of one user in MB; 0 for no limit."
    )
    cursor_ttl_seconds: Seconds = Field(
        600.0,
        ge=1,
        le=30 * 86_400,
        description="How long a cursor into a stored result or a list of windows is valid.",
    )

    result_resource_mb: Megabytes = Field(
        4.0,
        gt=0,
        description="Largest stored result, or part of one, that can be read whole as a resource, in MB; larger ones are read by "
        "result_read and result_query.",
    )

    queries_at_once: Count = Field(
        3,
        ge=1,
        description="Number of JMESPath queries that run at once, each in a process of up to 1 GiB; one tenant's leave one to the "
        "others.",
    )
    query_wait_seconds: Seconds = Field(
        10.0, gt=0, description="How long a query waits for other queries before it is refused."
    )

    def quota_bytes(self) -> int | None:
        return round(self.result_quota_mb * 2**20) or None

    def whole_bytes(self) -> int:
        return round(self.result_resource_mb * 2**20)


class Tasks(Group):
    """Tasks of upstreams: calls of tools that go on after they are answered."""

    upstream_tasks: Count = Field(100, ge=1, description="Maximum number of open tasks of one user.")
    upstream_task_seconds: Seconds = Field(
        86_400.0,
        ge=1,
        le=30 * 86_400,
        description="How long a task, and its result, can be asked for by its handle.",
    )


class Context(Group):
    """Shared context and stored results: their limits in memory and in the shared store."""

    context_memory_mb: Megabytes = Field(
        100.0,
        gt=0,
        description="Memory in MB for frequently used entries; usage stays below 90 % of it. Can be changed while running.",
    )
    context_eviction: Eviction = Field(
        Eviction.LRU,
        description="What leaves memory first: unused for longest (lru), used least often (lfu), expires soonest "
        "(ttl), lowest priority, or largest (size). Can be changed while running.",
    )
    context_compress_bytes: Bytes = Field(
        1024,
        ge=0,
        description="Values larger than this many bytes are compressed if that makes them smaller.",
    )
    context_ttl_seconds: Seconds = Field(
        3600.0, ge=0, description="Lifetime of a key that is set without `ttl`; 0 for ever."
    )
    context_value_kb: Count = Field(1024, ge=1, description="Largest value of a key in KB of JSON.")
    context_versions: Count = Field(
        1000,
        ge=1,
        description="Number of past versions of a scope that stay readable, besides those with a snapshot.",
    )
    context_snapshots: Count = Field(
        100,
        ge=1,
        description="Maximum number of snapshots of a scope; beyond it, a new one replaces the oldest.",
    )
    context_quota_mb: Megabytes = Field(
        1024.0,
        ge=0,
        description="Storage limit for a tenant's values in the shared store in MB, including past versions and stored "
        "results, excluding keys; 0 for no limit.",
    )

    def memory_bytes(self) -> int:
        return round(self.context_memory_mb * 2**20)

    def quota_bytes(self) -> int | None:
        return round(self.context_quota_mb * 2**20) or None
