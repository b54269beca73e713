"""Settings of the engine, remote or local, and of how its cache is verified."""

from __future__ import annotations

import shlex
import ssl
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, SecretStr, field_validator

from cwm.domain.engine import CacheScope
from cwm.domain.planner import Choice
from cwm.settings.fields import Count, Gigabytes, Group, Seconds, UserPath
from cwm.settings.origins import Names
from cwm.settings.urls import http_url

ABSENT: Final = "none"


class Engine(Group):
    """The vLLM and LMCache servers that CWM uses."""

    vllm_url: str = Field("http://localhost:8000", description="Base URL of vLLM.")
    vllm_api_key: SecretStr | None = Field(None, description="Bearer key sent to vLLM (its --api-key).")
    lmcache_url: str = Field(
        "http://localhost:8081",
        description="HTTP URL of the LMCache server; 'none' for an engine without LMCache.",
    )
    coordinator_url: str = Field(
        "http://localhost:9300",
        description="URL of the LMCache coordinator; 'none' for an engine without LMCache.",
    )
    weights_digest: str = Field(
        "",
        description="Digest of the served weights, for a vLLM without CWM's connector, which reports its own. Change it "
        "whenever the weights change: KV stored for other weights must not be used.",
    )
    connect_timeout_seconds: Seconds = Field(2.0, gt=0, description="Timeout for connecting to the engine.")
    request_timeout_seconds: Seconds = Field(
        600.0, gt=0, description="Timeout for one response of the engine, including a long generation."
    )
    max_answer_bytes: int = Field(
        32 * 1024 * 1024,
        ge=1024 * 1024,
        le=1024 * 1024 * 1024,
        description="Largest answer in one piece to a recorded turn, or of a model that does not generate, and largest event of a streamed answer, in bytes. Other answers are passed on as they arrive.",
    )
    store_timeout_seconds: Seconds = Field(
        60.0, gt=0, description="Timeout for storing a window's chunks and proving that they are stored."
    )

    moves_at_once: Count = Field(
        2,
        ge=1,
        description="Most sessions that a gateway moves from one engine to another at once, and most windows of an upgraded model that it freezes again at once.",
    )

    @field_validator("vllm_url", "lmcache_url", "coordinator_url")
    @classmethod
    def _http_url(cls, value: str) -> str:
        if value != ABSENT and "@" in http_url(value).netloc:
            raise ValueError("must not contain a user or a password")
        return value.rstrip("/")

    def tls_context(self) -> ssl.SSLContext | None:
        """How to speak TLS with vLLM; None for as with anybody."""
        return None

    @property
    def server_name(self) -> str | None:
        """The name that vLLM's certificate must have; None for that of its URL."""
        return None

    @property
    def is_router(self) -> bool:
        """Whether a router that stands in for several engines answers there."""
        return False

    @property
    def has_lmcache(self) -> bool:
        return ABSENT not in (self.lmcache_url, self.coordinator_url)


class Verification(Group):
    """How restored KV and the tiers that it comes from are verified."""

    canary_places: int = Field(
        64,
        ge=0,
        le=1_024,
        description="Most places of a canary, the look at a window's KV that a freeze records and a thaw compares; 0 for no canaries.",
    )
    canary_tokens: int = Field(
        16,
        ge=0,
        le=256,
        description="Of earlier versions, whose canaries were decoded tokens: 0 is the same as CWM_CANARY_PLACES=0, others do nothing.",
    )
    canary_tolerance: float = Field(
        0.1,
        gt=0,
        le=1_000,
        description="Of earlier versions, without effect: noise is measured on each engine now.",
    )
    watchdog_seconds: Seconds = Field(
        30.0,
        ge=0,
        description="Approximate interval at which the watchdog loads a small prefix from the tiers below L1; 0 for never.",
    )

    @property
    def places(self) -> int:
        """Most places of a canary; 0 for no canaries."""
        return self.canary_places if self.canary_tokens else 0


class Thaw(Group):
    """How a thaw restores KV."""

    thaw_plan: Choice = Field(
        Choice.AUTO,
        description="Load a window's KV, recompute it, or (auto) load it unless measured speeds show that this is slower.",
    )


class Isolation(Group):
    """How tenants' data and KV are kept apart."""

    tenant: str = Field(
        "default",
        pattern=r"^[a-zA-Z0-9_-]{1,64}$",
        description="Tenant of this gateway's callers, unless their credentials name another.",
    )
    cache_scope: CacheScope = Field(
        CacheScope.TENANT,
        description="Who shares KV: a whole tenant, or one lineage of sessions ('session'; requests without a session: one caller).",
    )
    session_visibility: Literal["private", "tenant"] | None = Field(
        None,
        description="Who may see a session that does not say so itself. Unset: `private` where requests are authenticated, else "
        "`tenant`.",
    )
    window_visibility: Literal["private", "tenant"] = Field(
        "tenant", description="Who may see a window that does not say so itself."
    )
    secret: SecretStr | None = Field(
        None, description="Secret from which cache salts are derived; must be the same on every replica."
    )
    secret_file: UserPath = Field(
        Path("~/.cwm/secret"),
        description="File with that secret when CWM_SECRET is unset; created on first use.",
    )
    previous_secret: SecretStr | None = Field(
        None,
        description="The previous secret, after a change: cursors that it signed stay valid until they expire.",
    )


class LocalEngine(Group):
    """The engine that ``cwm up`` prepares and starts."""

    home: UserPath = Field(
        Path("~/.cwm"), description="Folder of the engine environment, models and run files."
    )
    model: str = Field(
        "smollm2-135m",
        description="Model that `cwm up` serves: smollm2-135m, tiny, or a folder with weights.",
    )
    served_model_name: str | None = Field(
        None, description="Name under which the model is served; default: its own."
    )
    max_model_len: Count | None = Field(
        None,
        ge=64,
        description="Maximum context length in tokens; default: the model's, at most 8192 on CPU.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Data type of KV and weights; auto is float32 on CPU."
    )
    chunk_size: Count | None = Field(
        None, ge=16, description="Tokens per chunk and per vLLM block; default: 64, or 32 for the tiny model."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the engine runs; auto uses an NVIDIA GPU if there is one."
    )
    media_domains: Names = Field(
        (),
        description="Hosts from which the engine may fetch images, audio and video of messages, comma-separated; unset: none.",
    )
    kv_cache_gb: Gigabytes = Field(2.0, gt=0, description="Size of vLLM's own KV cache on CPU in GB.")
    tool_parser: str = Field(
        "auto",
        description="vLLM's parser of tool calls (its --tool-call-parser); auto is the one that fits the model, none refuses tools.",
    )
    reasoning_parser: str = Field(
        "auto",
        description="vLLM's parser of thoughts (its --reasoning-parser); auto is the one that fits the model, none for no parser.",
    )
    chat_template: UserPath | None = Field(
        None, description="File with the chat template that vLLM uses instead of the model's."
    )
    engine_args: str = Field(
        "", description="Further arguments of vLLM, as a shell reads them; none that CWM sets itself."
    )

    @field_validator("engine_args")
    @classmethod
    def _shell_words(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as wrong:
            raise ValueError(f"must be arguments as a shell reads them: {wrong}") from None
        return value

    @property
    def serving_variables(self) -> dict[str, str]:
        """The variables of ``cwm_engine.serve_vllm`` that are not as by default."""
        template = "" if self.chat_template is None else str(self.chat_template.absolute())
        values = {
            "CWM_TOOL_PARSER": self.tool_parser,
            "CWM_REASONING_PARSER": self.reasoning_parser,
            "CWM_CHAT_TEMPLATE": template,
            "CWM_ENGINE_ARGS": self.engine_args,
        }
        return {name: value for name, value in values.items() if value not in {"", "auto"}}
