"""Whether there are traces, and the names that the processor of logs finds them by."""

from __future__ import annotations

from cwm.ports.tracing import UNTRACED, Tracer
from cwm.settings import Tracing


def open_tracer(settings: Tracing) -> Tracer:
    """One that exports to ``otlp_endpoint``; without that, one that does nothing."""
    if settings.otlp_endpoint is None:
        return UNTRACED
    # The SDK takes time and memory that a gateway without traces has no use for.
    from cwm.adapters.telemetry.otel import OtelTracer

    return OtelTracer(settings)
