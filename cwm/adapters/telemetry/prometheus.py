"""The port ``Meter`` with prometheus-client, on a private registry."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cwm.adapters.telemetry.described import Described, described
from cwm.adapters.telemetry.requests import RequestMetrics
from cwm.adapters.telemetry.standing import StandingCollector
from cwm.domain.verdict import Verification
from cwm.ports.meter import Observed, Sample

_BUCKETS_MS: Final = (
    1,
    2,
    5,
    10,
    25,
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    30_000,
    60_000,
    300_000,
)
_BUCKETS_PHASE: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BUCKETS_LAG: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_BUCKETS_DRIFT: Final = (0.5, 0.75, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0)
_MOST_LABELS: Final = 128
_OTHER: Final = "other"
_WINDOW: Final = 1024
_ALERTED: Final = (
    "thaw_partial",
    "canary_stale",
    "scope_retired",
    "move_mismatch",
    "thaw_without_lmcache",
    "config_reload_refused",
    "config_reload_failed",
    "audit_chain_replaced",
)


class PrometheusMeter(RequestMetrics):
    """The metrics ``cwm_*`` and ``process_*``. Durations of operations are in milliseconds, all others in seconds.

    A label has at most 128 values; further values are counted as ``other``. Percentiles are over the last
    1,024 durations of an operation.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        super().__init__(registry)
        self._registry = registry
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._operations = counter("cwm_operation", "Total operations", ["operation", "status"])
        self._durations = histogram(
            "cwm_operation_duration_ms",
            "Operation duration in milliseconds",
            ["operation"],
            buckets=_BUCKETS_MS,
        )
        self._recent = _RecentDurations()
        registry.register(self._recent)
        self._tokens = counter("cwm_prompt_tokens", "Prompt tokens by the source of their KV", ["source"])
        self._results = counter(
            "cwm_result_tokens",
            "Tokens of tool results: had in all, delivered at once, read_later from the store",
            ["part"],
        )
        self._saved = gauge(
            "cwm_result_tokens_saved",
            "Tokens of tool results that no agent received: had minus delivered minus read_later",
        )
        self._drift = histogram(
            "cwm_token_drift",
            "Tokens of a sampled text in the served model's tokenizer per token that was counted",
            buckets=_BUCKETS_DRIFT,
        )
        self._sampled = counter(
            "cwm_sampled_tokens",
            "Tokens of sampled texts as counted, and in the served model's tokenizer",
            ["by"],
        )
        self._events = counter("cwm_events", "Events by name", ["event"])
        self._looks = counter("cwm_watchdog_checks", "Checks of the watchdog by outcome", ["outcome"])
        self._instances = gauge(
            "cwm_watchdog_healthy",
            "Whether an LMCache instance (of listed engines: the one beside the engine of this name) returns what it stored, from the tier that is read first",
            ["instance"],
        )
        self._phases = histogram(
            "cwm_thaw_phase_seconds",
            "Phases of thaws: prefetch into LMCache's L1, the engine's request, looks and controls",
            ["phase"],
            buckets=_BUCKETS_PHASE,
        )
        self._verified = counter(
            "cwm_verifications", "Thaws by the verdict on their restored KV", ["outcome"]
        )
        self._lag = histogram(
            "cwm_event_loop_lag_seconds",
            "Delay with which the event loop woke a task that runs twice a second",
            buckets=_BUCKETS_LAG,
        )
        self._standing = StandingCollector()
        registry.register(self._standing)
        ProcessCollector(registry=registry)
        self._observed: Observed | None = None
        self._result_parts = [self._results.labels(part) for part in ("had", "delivered", "read_later")]
        self._operation_names, self._sources, self._event_names = _Names(), _Names(), _Names()
        self._outcomes = _Names()
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Create the series that alerts use at 0: Prometheus sees no increase when a series first appears."""
        for outcome in Verification:
            self._verified.labels(outcome)
        for event in _ALERTED:
            self._events.labels(self._event_names.bounded(event))

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        start, status = time.perf_counter(), "error"
        try:
            yield
            status = "success"
        finally:
            elapsed_ms = (time.perf_counter() - start) * 1000
            label = self._operation_names.bounded(name)
            self._operations.labels(label, status).inc()
            self._durations.labels(label).observe(elapsed_ms)
            self._recent.add(label, elapsed_ms)

    def tokens(self, source: str, count: int) -> None:
        self._tokens.labels(self._sources.bounded(source)).inc(count)

    def result_tokens(self, *, had: int, delivered: int, read_later: int) -> None:
        for series, tokens in zip(self._result_parts, (had, delivered, read_later), strict=True):
            if tokens:
                series.inc(tokens)
        if saved_tokens := had - delivered - read_later:
            self._saved.inc(saved_tokens)

    def drift(self, own_count: int, model_count: int) -> None:
        self._drift.observe(model_count / own_count)
        self._sampled.labels("counted").inc(own_count)
        self._sampled.labels("served").inc(model_count)

    def event(self, name: str) -> None:
        self._events.labels(self._event_names.bounded(name)).inc()

    def watched(self, outcome: str) -> None:
        self._looks.labels(self._outcomes.bounded(outcome)).inc()

    def instances(self, healthy: Mapping[str, bool]) -> None:
        self._instances.clear()
        for instance, is_healthy in islice(healthy.items(), _MOST_LABELS):
            self._instances.labels(instance).set(is_healthy)

    def thaw_phase(self, phase: str, elapsed_ms: float) -> None:
        self._phases.labels(phase).observe(elapsed_ms / 1000)

    def verified(self, outcome: str) -> None:
        self._verified.labels(outcome).inc()

    def event_loop_lag(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def observe(self, observed: Observed) -> None:
        """Export the figures of ``observed`` as gauges from now on."""
        self._observed = observed
        self._standing.now = observed.now

    async def look(self) -> None:
        if self._observed is not None:
            await self._observed.look()

    async def aclose(self) -> None:
        if self._observed is not None:
            await self._observed.aclose()

    def described(self) -> list[Described]:
        """Every exported metric, including those without a sample."""
        return described(self._registry)

    def text(self, *, buckets: bool = True) -> str:
        text = generate_latest(self._registry).decode()
        if buckets:
            return text
        return "".join(
            line for line in text.splitlines(keepends=True) if not _is_bucket(line.partition("{")[0])
        )

    def samples(self, *, buckets: bool = True) -> list[Sample]:
        return [
            Sample(sample.name, metric.type, sample.value, sample.labels)
            for metric in self._registry.collect()
            for sample in metric.samples
            if math.isfinite(sample.value) and (buckets or not _is_bucket(sample.name))
        ]


def _is_bucket(series: str) -> bool:
    return series.endswith("_bucket")


class _Names:
    """The values of one label, limited in number."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def bounded(self, name: str) -> str:
        if name not in self._values:
            if len(self._values) >= _MOST_LABELS:
                return _OTHER
            self._values.add(name)
        return name


class _RecentDurations(Collector):
    """Gauges of percentiles over each operation's last durations."""

    def __init__(self) -> None:
        self._durations: dict[str, deque[float]] = {}

    def add(self, operation: str, elapsed_ms: float) -> None:
        self._durations.setdefault(operation, deque(maxlen=_WINDOW)).append(elapsed_ms)

    def collect(self) -> Iterator[Metric]:
        in_order = {operation: sorted(recent) for operation, recent in self._durations.items()}
        for percent in (50, 99):
            family = GaugeMetricFamily(
                f"cwm_operation_duration_ms_p{percent}",
                f"Percentile {percent} of the last {_WINDOW} durations in milliseconds",
                labels=["operation"],
            )
            for operation, durations in in_order.items():
                family.add_metric([operation], round(_percentile(durations, percent), 3))
            yield family


def _percentile(in_order: Sequence[float], percent: int) -> float:
    """The smallest value that at least ``percent`` per cent of all values do not exceed."""
    return in_order[math.ceil(len(in_order) * percent / 100) - 1]
