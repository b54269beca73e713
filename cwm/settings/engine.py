"""The engine, whether it runs elsewhere or here, and how far its cache is trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import Field, SecretStr, field_validator

from cwm.domain.engine import CacheScope
from cwm.domain.planner import Choice
from cwm.settings.fields import Count, Gigabytes, Seconds
from cwm.settings.group import Group
from cwm.settings.urls import http_url

ABSENT: Final = "none"


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
    connect_timeout_seconds: Seconds = Field(
        2.0, gt=0, description="Longest wait for a connection to the engine."
    )
    request_timeout_seconds: Seconds = Field(
        600.0, gt=0, description="Longest wait for one answer of the engine, a long generation included."
    )
    store_timeout_seconds: Seconds = Field(
        60.0, gt=0, description="Longest wait for a window's chunks to be stored and proven."
    )

    @field_validator("vllm_url", "lmcache_url", "coordinator_url")
    @classmethod
    def _http_url(cls, value: str) -> str:
        if value != ABSENT and "@" in http_url(value).netloc:
            raise ValueError("must not hold a user or a password")
        return value.rstrip("/")

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
        le=1_000,
        description="How far a log-probability (nats) may move before a replay counts as wrong.",
    )
    watchdog_seconds: Seconds = Field(
        30.0,
        ge=0,
        description="About how often the watchdog loads a small prefix from the tiers below L1; 0 for never.",
    )


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
    max_model_len: Count | None = Field(
        None, ge=64, description="Longest context in tokens; default: the model's, at most 8192 on CPU."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="KV and weight type; auto is float32 on CPU."
    )
    chunk_size: Count | None = Field(
        None, ge=16, description="Tokens in a chunk and in a vLLM block; default 64, 32 for the tiny model."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto takes an NVIDIA GPU where there is one."
    )
    kv_cache_gb: Gigabytes = Field(2.0, gt=0, description="vLLM's own KV cache on CPU in GB.")

    @field_validator("home")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()
