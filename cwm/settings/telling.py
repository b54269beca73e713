"""What the gateway tells of itself and of what it did."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, Literal

from pydantic import Field, SecretStr, field_validator

from cwm.settings.fields import Days, Seconds
from cwm.settings.group import Group
from cwm.settings.urls import http_url

_TRACES_PATH: Final = "/v1/traces"


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

    metrics_refresh_seconds: Seconds = Field(
        5.0,
        ge=0,
        description="Sessions, windows, tiers and components are asked for again when /metrics is read, but not "
        "sooner than this.",
    )
    check_timeout_seconds: Seconds = Field(
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
        if value is None:
            return None
        http_url(value)
        return value.rstrip("/")

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


class Audit(Group):
    """The audit log."""

    title = "audit"

    audit_retention_days: Days = Field(
        0, ge=0, description="Audit records older than that are removed, with an anchor left; 0 keeps all."
    )
    audit_checkpoint_seconds: Seconds = Field(
        60.0, gt=0, description="How often it is kept, and logged, how far the audit log has come."
    )

    def keep_for(self) -> timedelta | None:
        return timedelta(days=self.audit_retention_days) or None


def _headers(written: SecretStr) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in written.get_secret_value().split(",") if pair.strip()]
    if any(not name.strip() or not equals for name, equals, _ in pairs):
        raise ValueError("must be name=value pairs, separated by commas")
    return {name.strip(): value.strip() for name, _, value in pairs}
