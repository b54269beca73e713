"""Metrics of requests by face, method, tool, era and outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_M = TypeVar("_M", Counter, Gauge, Histogram)


class RequestMetrics:
    """The port :class:`cwm.ports.meter.RequestMeter`. Callers bound the labels' values; each series is looked up once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        http, mcp, tool = ["face", "route"], ["method"], ["tool"]
        self._http = _Series(
            Counter(
                "cwm_http_requests",
                "HTTP requests that ended, by status class; left: the client disconnected before the response",
                [*http, "status"],
                registry=registry,
            )
        )
        self._http_seconds = _Series(
            Histogram(
                "cwm_http_request_duration_seconds",
                "Time from a request to the last byte of its response; without /mcp, whose streams stay open",
                http,
                buckets=_SECONDS,
                registry=registry,
            )
        )
        self._first_byte = _Series(
            Histogram(
                "cwm_http_first_byte_seconds",
                "Time from a request to the first byte of its response's body; of a stream, to its first token",
                ["face"],
                buckets=_SECONDS,
                registry=registry,
            )
        )
        self._http_now = _Series(
            Gauge(
                "cwm_http_requests_in_flight",
                "HTTP requests in progress, including open streams",
                http,
                registry=registry,
            )
        )
        self._mcp = _Series(
            Counter(
                "cwm_mcp_requests",
                "MCP requests and notifications that ended, over HTTP or stdio",
                [*mcp, "era", "outcome"],
                registry=registry,
            )
        )
        self._mcp_seconds = _Series(
            Histogram(
                "cwm_mcp_request_duration_seconds",
                "Duration of MCP requests, without listening ones",
                mcp,
                buckets=_SECONDS,
                registry=registry,
            )
        )
        self._mcp_now = Gauge(
            "cwm_mcp_requests_in_flight",
            "MCP requests in progress, including listening ones",
            registry=registry,
        )
        self._mcp_errors = _Series(
            Counter("cwm_mcp_errors", "Errors sent to MCP clients, by code", ["code"], registry=registry)
        )
        self._tools = _Series(
            Counter(
                "cwm_tool_calls",
                "Tool calls that ended; all tools of an upstream are counted together as <upstream>_*",
                [*tool, "era", "outcome"],
                registry=registry,
            )
        )
        self._tool_seconds = _Series(
            Histogram(
                "cwm_tool_call_duration_seconds",
                "Duration of tool calls",
                tool,
                buckets=_SECONDS,
                registry=registry,
            )
        )

    def http_begun(self, face: str, route: str) -> None:
        self._http_now[face, route].inc()

    def http_ended(self, face: str, route: str, status: str, seconds: float | None) -> None:
        self._http_now[face, route].dec()
        self._http[face, route, status].inc()
        if seconds is not None:
            self._http_seconds[face, route].observe(seconds)

    def http_answered(self, face: str, seconds: float) -> None:
        self._first_byte[(face,)].observe(seconds)

    def mcp_begun(self) -> None:
        self._mcp_now.inc()

    def mcp_ended(self, method: str, era: str, outcome: str, seconds: float | None) -> None:
        self._mcp_now.dec()
        self._mcp[method, era, outcome].inc()
        if seconds is not None:
            self._mcp_seconds[(method,)].observe(seconds)

    def mcp_failed(self, code: str) -> None:
        self._mcp_errors[(code,)].inc()

    def tool_called(self, tool: str, era: str, outcome: str, seconds: float) -> None:
        self._tools[tool, era, outcome].inc()
        self._tool_seconds[(tool,)].observe(seconds)


class _Series(dict[tuple[str, ...], _M], Generic[_M]):
    """The series of one metric by label values, cached because ``labels()`` checks and locks at every call."""

    def __init__(self, metric: _M) -> None:
        super().__init__()
        self._labels: Callable[..., _M] = metric.labels

    def __missing__(self, labels: tuple[str, ...]) -> _M:
        series = self[labels] = self._labels(*labels)
        return series
