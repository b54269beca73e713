"""Metrics of requests by face, method, tool, era and outcome."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_M = TypeVar("_M", Counter, Gauge, Histogram)


class RequestMetrics:
    """The port :class:`cwm.ports.meter.RequestMeter`. Callers bound the labels' values; each series is looked up once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=_SECONDS)
        self._http = _Series(
            counter(
                "cwm_http_requests",
                "HTTP requests that ended, by status class; left: the client disconnected before the response",
                ["face", "route", "status"],
            )
        )
        self._http_seconds = _Series(
            histogram(
                "cwm_http_request_duration_seconds",
                "Time from a request to the last byte of its response; without /mcp and /console/events, whose streams stay open",
                ["face", "route"],
            )
        )
        self._first_byte = _Series(
            histogram(
                "cwm_http_first_byte_seconds",
                "Time from a request to the first byte of its response's body; of a stream, to its first token",
                ["face"],
            )
        )
        in_flight = "HTTP requests in progress, including open streams"
        self._http_now = _Series(gauge("cwm_http_requests_in_flight", in_flight, ["face", "route"]))
        self._mcp = _Series(
            counter(
                "cwm_mcp_requests",
                "MCP requests and notifications that ended, over HTTP or stdio",
                ["method", "era", "outcome"],
            )
        )
        duration = "Duration of MCP requests, without listening ones"
        self._mcp_seconds = _Series(histogram("cwm_mcp_request_duration_seconds", duration, ["method"]))
        self._mcp_now = gauge(
            "cwm_mcp_requests_in_flight", "MCP requests in progress, including listening ones"
        )
        self._mcp_errors = _Series(counter("cwm_mcp_errors", "Errors sent to MCP clients, by code", ["code"]))
        self._tools = _Series(
            counter(
                "cwm_tool_calls",
                "Tool calls that ended; all tools of an upstream are counted together as <upstream>_*",
                ["tool", "era", "outcome"],
            )
        )
        self._tool_seconds = _Series(
            histogram("cwm_tool_call_duration_seconds", "Duration of tool calls", ["tool"])
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
