"""Gauges of the current state: sessions, windows, tiers, components, and the process itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cwm import __version__
from cwm.ports.kv_tier import TierUsage
from cwm.ports.meter import MemoryUse, Standing


class StandingCollector(Collector):
    """Yields the figures of ``now()`` as gauges at each scrape. An unknown figure has no sample."""

    def __init__(self) -> None:
        self.now: Callable[[], Standing] = Standing

    def collect(self) -> Iterator[Metric]:
        now = self.now()
        yield _by("cwm_build_info", "The running version", "version", {__version__: 1})
        yield _by(
            "cwm_sessions",
            "Sessions of every tenant by state, as the registry counts them",
            "state",
            now.sessions,
        )
        yield _by(
            "cwm_windows",
            "Windows of every tenant by durability, as the registry counts them",
            "durability",
            now.windows,
        )
        yield from _tiers(now)
        yield _by(
            "cwm_component_up",
            "Whether a component that the gateway needs answers (1) or is down (0)",
            "component",
            now.components,
        )
        yield _by(
            "cwm_upstream_up",
            "Whether an upstream MCP server is connected (1) or away (0)",
            "upstream",
            now.upstreams,
        )
        yield _by(
            "cwm_engine_up",
            "Whether one of several engines answers (1) or is away (0)",
            "engine",
            now.engines,
        )
        yield _by(
            "cwm_engine_sessions",
            "Live sessions of every tenant that one of several engines serves",
            "engine",
            now.engine_sessions,
        )
        yield _by(
            "cwm_engine_draining",
            "Whether one of several engines is drained (1): it takes no new sessions",
            "engine",
            now.engine_drains,
        )
        yield GaugeMetricFamily(
            "cwm_agent_sessions", "Agent sessions that this process serves", value=now.agent_sessions
        )
        yield from _contents(now.context)
        yield GaugeMetricFamily(
            "cwm_database_transactions",
            "Transactions that run or wait for a connection",
            value=now.database_transactions,
        )
        yield GaugeMetricFamily(
            "cwm_database_connections_limit",
            "Transactions that can run at once",
            value=now.database_connections,
        )
        yield GaugeMetricFamily("cwm_threads", "Threads of the process", value=threading.active_count())


def _by(name: str, help_text: str, label: str, values: Mapping[str, float] | None) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for value, number in (values or {}).items():
        family.add_metric([value], float(number))
    return family


def _contents(memory: MemoryUse) -> Iterator[Metric]:
    reads = CounterMetricFamily(
        "cwm_context_reads",
        "Reads of values of shared context and stored results: hit in memory, warm_hit (decompressed there), or miss",
        labels=["outcome"],
    )
    for outcome, count in memory.reads.items():
        reads.add_metric([outcome], count)
    yield reads
    yield GaugeMetricFamily(
        "cwm_context_memory_bytes", "Bytes of these values and of keys in memory", value=memory.used_bytes
    )
    yield GaugeMetricFamily(
        "cwm_context_memory_limit_bytes", "Bytes from which values leave memory", value=memory.limit_bytes
    )


def _tiers(now: Standing) -> Iterator[Metric]:
    def tier_gauge(name: str, help_text: str, number: Callable[[TierUsage], int | None]) -> Metric:
        return _by(
            name, help_text, "tier", {str(t.tier): n for t in now.tiers if (n := number(t)) is not None}
        )

    yield tier_gauge(
        "cwm_tier_used_bytes", "Bytes of KV in a tier, over all instances", lambda t: t.used_bytes
    )
    yield tier_gauge(
        "cwm_tier_capacity_bytes", "Capacity of a tier that has a limit, in bytes", lambda t: t.capacity_bytes
    )
