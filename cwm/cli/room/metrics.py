"""``/metrics`` and ``/healthz`` of ``cwm room``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cwm.stack.errors import StackError
from cwm.stack.room import TierState


class RoomMetrics(Collector):
    """The state of each tier as gauges. A tier has no series before its first check."""

    def __init__(self, tiers: Mapping[str, TierState]) -> None:
        self._tiers = tiers

    def collect(self) -> Iterator[Metric]:
        states = [
            (name, tier) for name, tier in self._tiers.items() if tier.used or tier.limit or tier.failures
        ]
        for name, described, values in (
            ("used_bytes", "Bytes in a tier below L1", {n: tier.used for n, tier in states}),
            (
                "limit_bytes",
                "The most bytes that a tier may hold",
                {n: tier.limit for n, tier in states if tier.limit},
            ),
            (
                "failed_checks",
                "Checks of a tier that failed in succession",
                {n: tier.failures for n, tier in states},
            ),
            (
                "short",
                "Whether frozen windows leave a tier too little room",
                {n: tier.is_short for n, tier in states},
            ),
        ):
            family = GaugeMetricFamily(f"cwm_room_{name}", described, labels=["tier"])
            for tier_name, value in values.items():
                family.add_metric([tier_name], value)
            yield family


@contextmanager
def serving(address: str | None, tiers: Mapping[str, TierState]) -> Iterator[None]:
    """Serve at ``HOST:PORT`` while the block runs; at None nothing is served. Raises StackError."""
    if address is None:
        yield
        return
    server = _listening(address, tiers)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _listening(address: str, tiers: Mapping[str, TierState]) -> ThreadingHTTPServer:
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(RoomMetrics(tiers))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            failing = [tier.title for tier in tiers.values() if tier.failures]
            if self.path == "/metrics":
                self._answer(200, generate_latest(registry))
            elif self.path == "/healthz":
                self._answer(503 if failing else 200, (", ".join(failing) or "healthy").encode())
            else:
                self._answer(404, b"Not Found")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log no request."""

    try:
        return ThreadingHTTPServer((host, int(port)), Handler)
    except (OSError, ValueError, OverflowError) as error:
        raise StackError(
            f"metrics cannot be served at '{address}': {error}. --metrics takes HOST:PORT."
        ) from error
