"""Settings of logs, metrics, traces, token counting and the audit log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, Literal

from pydantic import Field, SecretStr, field_validator

from cwm.settings.fields import Days, Group, Seconds
from cwm.settings.urls import http_url

_TRACES_PATH: Final = "/v1/traces"
_TRACE_ID: Final = "{trace_id}"


class Tokens(Group):
    """How tokens of tool results are counted."""

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
        description="Vocabulary used to count tokens: choose the one closest to your agents' models.",
    )
    token_drift_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of results whose tokens the engine counts as well, for comparison (metric cwm_token_drift).",
    )


class Logging(Group):
    """CWM's own log."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Lowest level that is logged."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="Format of log lines; auto is console on a terminal, else json."
    )

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value


class Metrics(Group):
    """How the gateway's state is reported at /metrics and /readyz."""

    metrics_refresh_seconds: Seconds = Field(
        5.0,
        ge=0,
        description="Reading /metrics queries sessions, windows, tiers and components again, but no sooner than this after "
        "the last query.",
    )
    check_timeout_seconds: Seconds = Field(
        3.0,
        gt=0,
        description="A component that takes longer than this to answer a health check counts as down.",
    )


class Tracing(Group):
    """Where traces are sent. Without an endpoint, tracing is off."""

    otlp_endpoint: str | None = Field(
        None, description="Base URL of an OpenTelemetry collector (OTLP over HTTP), such as http://host:4318."
    )
    otlp_headers: SecretStr | None = Field(
        None, description="Headers to send to the collector, as name=value,name=value."
    )
    trace_sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of traces to record among those that start here; a caller's own sampling decision is respected.",
    )
    service_name: str = Field("cwm", pattern=r"\S", description="Name of this gateway in traces.")

    trace_url: str | None = Field(
        None,
        description="Address at which a tracing UI shows a trace, with {trace_id} in it, such as "
        "https://jaeger.example.com/trace/{trace_id}: the console links to it.",
    )

    @field_validator("trace_url")
    @classmethod
    def _template(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if value.count(_TRACE_ID) != 1:
            raise ValueError(f"must have {_TRACE_ID} in it once")
        if not value.isprintable() or " " in value:
            raise ValueError("must have no spaces and no control characters")
        if http_url(value.replace(_TRACE_ID, "0" * 32)).username is not None:
            raise ValueError("must have no user and no password: every page would show them")
        return value

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
        """The endpoint's URL for spans."""
        base = self.otlp_endpoint or ""
        return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH

    def headers(self) -> dict[str, str]:
        return {} if self.otlp_headers is None else _headers(self.otlp_headers)


class Audit(Group):
    """The audit log."""

    audit_retention_days: Days = Field(
        0,
        ge=0,
        description="Audit records older than this are removed and an anchor is left; 0 keeps all records.",
    )
    audit_checkpoint_seconds: Seconds = Field(
        60.0, gt=0, description="Interval between audit checkpoints, which are stored and logged."
    )

    def keep_for(self) -> timedelta | None:
        return timedelta(days=self.audit_retention_days) or None


def _headers(headers: SecretStr) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in headers.get_secret_value().split(",") if pair.strip()]
    if any(not name.strip() or not equals for name, equals, _ in pairs):
        raise ValueError("must be name=value pairs, separated by commas")
    return {name.strip(): value.strip() for name, _, value in pairs}
