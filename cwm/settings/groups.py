"""Every setting that has a variable of its own, in groups: each is frozen and goes to the adapters that need it."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pydantic import Field, SecretStr, field_validator
from pydantic.fields import FieldInfo

from cwm.domain.engine import CacheScope
from cwm.domain.eviction import Eviction
from cwm.domain.limits import NONE, LimitRules, parse_rates
from cwm.domain.planner import Choice
from cwm.settings.auth import Auth
from cwm.settings.errors import SettingsError
from cwm.settings.group import Group
from cwm.settings.origins import Names, Origins

ENV_PREFIX: Final = "CWM_"
ABSENT: Final = "none"
AUTO: Final = "auto"

_SESSION_RATES: Final = "60/minute, 1000/hour"
_TRACES_PATH: Final = "/v1/traces"


def is_secret(spec: FieldInfo) -> bool:
    return SecretStr in {spec.annotation, *get_args(spec.annotation)}


class Http(Group):
    """The gateway's own socket."""

    title = "http"

    host: str = Field("127.0.0.1", description="Address the gateway listens on.")
    port: int = Field(8700, ge=0, le=65535, description="Port the gateway listens on; 0 takes a free one.")
    allow_unauthenticated: bool = Field(
        False,
        description="Listen on an address other than loopback although there is no authentication.",
    )
    max_body_bytes: int = Field(
        8 * 1024 * 1024, ge=1024, description="Largest request body accepted, in bytes."
    )
    drain_seconds: float = Field(
        30.0, ge=0, description="How long a stopping gateway lets running streams finish."
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses and networks of reverse proxies, with commas between: from these, and no others, "
        "X-Forwarded-For says who the client is.",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: str) -> str:
        for each in filter(None, (part.strip() for part in value.split(","))):
            ip_network(each)
        return value

    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(part.strip()) for part in self.trusted_proxies.split(",") if part.strip())


class Security(Group):
    """Who may reach the gateway through a browser, and what the gateway may reach for upstreams."""

    title = "security"

    allowed_hosts: Names = Field(
        (),
        description="Host names by which clients reach the gateway, comma-separated; `*.example.com` is every name "
        "below it. Loopback, CWM_HOST and the address that a request came in on need not be named.",
    )
    allowed_origins: Origins = Field(
        (),
        description="Web pages that may call the gateway, as comma-separated origins (https://app.example.com); "
        "unset: none but its own.",
    )
    allow_link_local: bool = Field(
        False,
        description="Let upstreams be at link-local addresses, where clouds keep the credentials of a machine.",
    )


class Database(Group):
    """Where the registry lives."""

    title = "database"

    database_url: SecretStr | None = Field(
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
            return f"sqlite:///{self.db_path}"
        raw = self.database_url.get_secret_value()
        scheme, _, rest = raw.partition("://")
        if scheme in {"postgres", "postgresql", "postgresql+asyncpg"}:
            return f"postgresql+asyncpg://{rest}"
        if scheme in {"sqlite", "sqlite+aiosqlite"}:
            return f"sqlite://{rest}"
        raise SettingsError(
            f"CWM_DATABASE_URL has the scheme '{scheme}'; use postgresql:// or leave it unset for SQLite."
        )


class Engine(Group):
    """The vLLM and the LMCache that CWM stands in front of."""

    title = "engine"

    vllm_url: str = Field("http://localhost:8000", description="vLLM's base URL.")
    vllm_api_key: SecretStr | None = Field(None, description="Bearer key sent to vLLM (its --api-key).")
    lmcache_url: str = Field(
        "http://localhost:8081",
        description="LMCache server's HTTP URL; 'none' for an engine without LMCache.",
    )
    coordinator_url: str = Field(
        "http://localhost:9300",
        description="LMCache coordinator's URL; 'none' for an engine without LMCache.",
    )
    weights_digest: str = Field(
        "", description="Digest of the served weights; names their KV, so change it with them."
    )
    connect_timeout_seconds: float = Field(
        2.0, gt=0, description="Longest wait for a connection to the engine."
    )
    request_timeout_seconds: float = Field(
        600.0, gt=0, description="Longest wait for one answer of the engine, a long generation included."
    )
    store_timeout_seconds: float = Field(
        60.0, gt=0, description="Longest wait for a window's chunks to be stored and proven."
    )

    @field_validator("vllm_url", "lmcache_url", "coordinator_url")
    @classmethod
    def _http_url(cls, value: str) -> str:
        if "@" in value.partition("://")[2].partition("/")[0]:
            raise ValueError("must not hold a user or a password")
        if value == ABSENT or value.startswith(("http://", "https://")):
            return value.rstrip("/")
        raise ValueError("must be an http:// or https:// URL")

    @property
    def has_lmcache(self) -> bool:
        return ABSENT not in (self.lmcache_url, self.coordinator_url)


class Verification(Group):
    """How restored KV, and the tiers it comes from, prove themselves."""

    title = "verification"

    canary_tokens: int = Field(
        16,
        ge=0,
        le=256,
        description="Tokens decoded at a freeze and replayed at a thaw to verify it; 0 for neither.",
    )
    canary_tolerance: float = Field(
        0.1,
        gt=0,
        description="How far a log-probability (nats) may move before a replay counts as wrong.",
    )
    watchdog_seconds: float = Field(
        30.0,
        ge=0,
        description="About how often the watchdog loads a small prefix from the tiers below L1; 0 for never.",
    )


class Retention(Group):
    """How long things are kept, and how often CWM looks after them."""

    title = "retention"

    tenant_quota_gb: float = Field(
        0, ge=0, description="Most a tenant's guaranteed windows may take in GB; 0 for no limit."
    )
    session_ttl_seconds: float = Field(
        7 * 86_400, ge=0, description="A session without a turn for so long expires; 0 for never."
    )
    session_kept_seconds: float = Field(
        30 * 86_400, ge=0, description="An expired session is deleted after so long; 0 for never."
    )
    auto_freeze: bool = Field(
        False, description="Freeze a session that would expire, as a best-effort window `expired_<session>`."
    )
    reconcile_seconds: float = Field(
        60.0, gt=0, description="How often what crashes left is finished, and pins are compared."
    )
    patrol_windows: int = Field(
        8, ge=0, description="Guaranteed windows read back at each of these looks, each once an hour at most."
    )

    def quota_bytes(self) -> int | None:
        return round(self.tenant_quota_gb * 2**30) or None


class Audit(Group):
    """The audit log."""

    title = "audit"

    audit_retention_days: float = Field(
        0, ge=0, description="Audit records older than that are removed, with an anchor left; 0 keeps all."
    )
    audit_checkpoint_seconds: float = Field(
        60.0, gt=0, description="How often it is kept, and logged, how far the audit log has come."
    )

    def keep_for(self) -> timedelta | None:
        return timedelta(days=self.audit_retention_days) or None


class Thaw(Group):
    """How a thaw gets its KV."""

    title = "thaw"

    thaw_plan: Choice = Field(
        Choice.AUTO,
        description="Load a window's KV, recompute it, or (auto) load unless measured speeds say that is slower.",
    )


class Isolation(Group):
    """Whose data is whose."""

    title = "isolation"

    tenant: str = Field(
        "default",
        pattern=r"^[a-zA-Z0-9_-]{1,64}$",
        description="Tenant that this gateway acts for.",
    )
    cache_scope: CacheScope = Field(
        CacheScope.TENANT,
        description="Who shares KV: all of a tenant, or one lineage of sessions ('session').",
    )
    secret: SecretStr | None = Field(
        None, description="Key that cache salts are derived with; the same on every replica."
    )
    secret_file: Path = Field(
        Path("~/.cwm/secret"), description="Holds that key where CWM_SECRET is unset; made on first use."
    )
    previous_secret: SecretStr | None = Field(
        None, description="The key before a change of it: cursors that it signed are good until they expire."
    )

    @field_validator("secret_file")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()


class Storage(Group):
    """Tiers of the engine that ``cwm up`` starts."""

    title = "storage"

    storage_path: Path = Field(Path("~/.cwm/storage"), description="Folder of the disk tier.")
    cpu_cache_gb: float = Field(8.0, gt=0, description="Size of the CPU tier (LMCache L1) in GB.")
    disk_cache_gb: float = Field(50.0, ge=0, description="Size of the disk tier in GB; 0 for no limit.")
    redis_url: SecretStr | None = Field(
        None, description="Redis or Valkey of the shared tier. Unset: an embedded Valkey."
    )
    redis_cache_gb: float = Field(4.0, gt=0, description="Memory limit of the embedded Valkey in GB.")

    @field_validator("storage_path")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()


class Shared(Group):
    """What several gateways share of the agents that they serve."""

    title = "shared"

    shared_store_url: SecretStr | None = Field(
        None,
        description="Redis or Valkey that several gateways share; unset: CWM_REDIS_URL where that is set, "
        "else this process alone.",
    )
    agent_session_ttl_seconds: float = Field(
        1800.0, ge=60, description="An agent session that nobody uses for so long ends."
    )
    agent_session_limit: int = Field(
        10_000, ge=1, description="Most agent sessions kept in process; the one idle longest makes room."
    )


class StoredResults(Group):
    """Tool results that are stored for agents to read on."""

    title = "stored_results"

    result_quota_mb: float = Field(
        1024.0, ge=0, description="Most that the stored results of one user may take in MB; 0 for no limit."
    )
    cursor_ttl_seconds: float = Field(
        600.0, ge=1, le=30 * 86_400, description="For how long a cursor into a stored result is good."
    )

    def quota_bytes(self) -> int | None:
        return round(self.result_quota_mb * 2**20) or None


class Tokens(Group):
    """How tokens of tool results are counted."""

    title = "tokens"

    token_vocabulary: Literal[
        "o200k_base",
        "cl100k_base",
        "llama3",
        "qwen3",
        "deepseek_v3",
        "glm4",
        "kimi_k2",
        "mistral_v3",
        "phi4",
        "olmo2",
    ] = Field(
        "o200k_base",
        description="Vocabulary that tokens are counted in: the one nearest to your agents' models.",
    )
    token_drift_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of results whose tokens the engine is asked for, too (metric cwm_token_drift).",
    )


class Context(Group):
    """Shared context and stored results: what they may take, in memory and in the shared store."""

    title = "context"

    context_memory_mb: float = Field(
        100.0,
        gt=0,
        description="Memory in MB for what is used often; kept under 90 % of it. Taken over while running.",
    )
    context_eviction: Eviction = Field(
        Eviction.LRU,
        description="What leaves memory first: not used for longest (lru), used least often (lfu), ends soonest "
        "(ttl), lowest priority, or largest (size). Taken over while running.",
    )
    context_compress_bytes: int = Field(
        1024, ge=0, description="Values of more bytes are compressed where that makes them smaller."
    )
    context_value_kb: int = Field(1024, ge=1, description="Largest value of a key, in KB of JSON.")
    context_versions: int = Field(
        1000,
        ge=1,
        description="So many versions of a scope can be read again; those that a snapshot shows, too.",
    )
    context_snapshots: int = Field(
        100, ge=1, description="Most snapshots of a scope; the oldest makes room for one more."
    )
    context_quota_mb: float = Field(
        1024.0,
        ge=0,
        description="Most a tenant may take in the shared store in MB, past versions and stored results "
        "included; 0 for no limit.",
    )

    def memory_bytes(self) -> int:
        return round(self.context_memory_mb * 2**20)

    def quota_bytes(self) -> int | None:
        return round(self.context_quota_mb * 2**20) or None


class Limits(Group):
    """How much callers may ask for."""

    title = "limits"

    rate_limit_session: str = Field(
        "auto",
        description="Requests of one session, such as '60/minute, 1000/hour', or 'none'. auto is these two, and "
        "none for a gateway without authentication on loopback.",
    )
    rate_limit_principal: str = Field(
        NONE, description="Requests of one user, over all sessions: as above, without auto."
    )
    rate_limit_tenant: str = Field(NONE, description="Requests of one tenant, over all users.")
    rate_limit_on_failure: Literal["allow", "refuse"] = Field(
        "allow", description="What becomes of requests while the store that counts them is away."
    )
    concurrent_principal: int = Field(
        0, ge=0, description="Tool calls, reads and turns of one user at the same time; 0 for no limit."
    )
    concurrent_tenant: int = Field(0, ge=0, description="The same of one tenant.")
    token_budget_principal: str = Field(
        NONE,
        description="Tokens, of prompts and answers, that turns of one user may take: rates such as "
        "'200000/hour, 1000000/day', or 'none'.",
    )
    token_budget_tenant: str = Field(NONE, description="The same of one tenant.")
    max_header_bytes: int = Field(
        64 * 1024, ge=1024, description="Largest head of a request (its first line and headers) in bytes."
    )
    header_timeout_seconds: float = Field(
        10.0, gt=0, description="Longest a client may take to send the head of a request it has begun."
    )
    body_timeout_seconds: float = Field(
        60.0, gt=0, description="Longest a client may take to send the body of a request."
    )

    @field_validator("rate_limit_session")
    @classmethod
    def _rates_or_auto(cls, value: str) -> str:
        if value.strip() != AUTO:
            parse_rates(value)
        return value.strip()

    @field_validator(
        "rate_limit_principal", "rate_limit_tenant", "token_budget_principal", "token_budget_tenant"
    )
    @classmethod
    def _rates(cls, value: str) -> str:
        parse_rates(value)
        return value.strip()

    def rules(self, *, shared_with_others: bool) -> LimitRules:
        """``shared_with_others``: whether anybody but the user of this machine can ask for something."""
        session = self.rate_limit_session
        if session == AUTO:
            session = _SESSION_RATES if shared_with_others else NONE
        return LimitRules(
            session=parse_rates(session),
            principal=parse_rates(self.rate_limit_principal),
            tenant=parse_rates(self.rate_limit_tenant),
            running_principal=self.concurrent_principal or None,
            running_tenant=self.concurrent_tenant or None,
            principal_tokens=parse_rates(self.token_budget_principal),
            tenant_tokens=parse_rates(self.token_budget_tenant),
        )


class LocalEngine(Group):
    """The engine that ``cwm up`` prepares and starts."""

    title = "local_engine"

    home: Path = Field(Path("~/.cwm"), description="Where the engine environment, models and run files live.")
    model: str = Field(
        "smollm2-135m",
        description="Model that `cwm up` serves: smollm2-135m, tiny, or a folder with weights.",
    )
    served_model_name: str | None = Field(
        None, description="Name the model is served under; default: its own."
    )
    max_model_len: int | None = Field(
        None, ge=64, description="Longest context in tokens; default: the model's, at most 8192 on CPU."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="KV and weight type; auto is float32 on CPU."
    )
    chunk_size: int | None = Field(
        None, ge=16, description="Tokens in a chunk and in a vLLM block; default 64, 32 for the tiny model."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto takes an NVIDIA GPU where there is one."
    )
    kv_cache_gb: float = Field(2.0, gt=0, description="vLLM's own KV cache on CPU in GB.")

    @field_validator("home")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()


class Logging(Group):
    """What CWM writes about itself."""

    title = "logging"

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Least severe level logged."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto is console on a terminal, else json."
    )

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value


class Metrics(Group):
    """What is told of the gateway's state, at /metrics and /readyz."""

    title = "metrics"

    metrics_refresh_seconds: float = Field(
        5.0,
        ge=0,
        description="Sessions, windows, tiers and components are asked for again when /metrics is read, but not "
        "sooner than this.",
    )
    check_timeout_seconds: float = Field(
        3.0, gt=0, description="A component that takes longer to answer a health check counts as down."
    )


class Tracing(Group):
    """Where traces go. Without an endpoint there are none."""

    title = "tracing"

    otlp_endpoint: str | None = Field(
        None, description="Base URL of an OpenTelemetry collector (OTLP over HTTP), such as http://host:4318."
    )
    otlp_headers: SecretStr | None = Field(
        None, description="Headers that the collector wants, as name=value,name=value."
    )
    trace_sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of traces kept of those that begin here; a caller's own choice counts.",
    )
    service_name: str = Field("cwm", pattern=r"\S", description="What this gateway is called in traces.")

    @field_validator("otlp_endpoint")
    @classmethod
    def _http_url(cls, value: str | None) -> str | None:
        if value is None or value.startswith(("http://", "https://")):
            return value and value.rstrip("/")
        raise ValueError("must be an http:// or https:// URL")

    @field_validator("otlp_headers")
    @classmethod
    def _header_pairs(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            _headers(value)
        return value

    def traces_url(self) -> str:
        """Of the endpoint, where spans are taken."""
        base = self.otlp_endpoint or ""
        return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH

    def headers(self) -> dict[str, str]:
        return {} if self.otlp_headers is None else _headers(self.otlp_headers)


def _headers(written: SecretStr) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in written.get_secret_value().split(",") if pair.strip()]
    if any(not name.strip() or not equals for name, equals, _ in pairs):
        raise ValueError("must be name=value pairs, separated by commas")
    return {name.strip(): value.strip() for name, _, value in pairs}


GROUPS: dict[str, type[Group]] = {
    group.title: group
    for group in (
        Http,
        Auth,
        Security,
        Database,
        Engine,
        Verification,
        Thaw,
        Retention,
        Audit,
        Isolation,
        Storage,
        Shared,
        StoredResults,
        Tokens,
        Context,
        Limits,
        LocalEngine,
        Logging,
        Metrics,
        Tracing,
    )
}
