"""Lists the metrics that a registry declares, including those without a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class Described:
    """The declaration of one metric. ``type`` is Prometheus's type name."""

    name: str
    type: str
    labels: tuple[str, ...]
    help_text: str


def described(registry: CollectorRegistry) -> list[Described]:
    """All metrics of ``registry``, sorted by name."""
    return sorted(
        (
            Described(
                _exported_name(family), family.type, tuple(_labels(collector, family)), family.documentation
            )
            for collector in registry._collector_to_names  # noqa: SLF001 - labels are published with samples only
            for family in collector.collect()
        ),
        key=lambda each: each.name,
    )


def _exported_name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(collector: Collector, family: Metric) -> Sequence[str]:
    """The declared label names, of a metric object or of a metric family that a custom collector yields."""
    declared_by = collector if hasattr(collector, "_labelnames") else family
    labels: Sequence[str] = getattr(declared_by, "_labelnames", ())
    return labels
