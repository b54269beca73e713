"""A collector that keeps what it is sent; it can also refuse, or keep its senders waiting."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

PATIENCE_SECONDS: Final = 20.0
_KINDS: Final = {1: "internal", 2: "server", 3: "client"}


@dataclass(frozen=True, slots=True)
class Span:
    """As it was exported."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    failed: bool
    links: list[str]
    started_ns: int
    resource: dict[str, Any]

    @property
    def error(self) -> str | None:
        return self.attributes.get("error.type")


@dataclass(slots=True)
class Sink:
    """``holding`` while set keeps every answer back; ``status`` is what is answered."""

    url: str = ""
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, headers: dict[str, str], body: bytes) -> None:
        raw = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        sent = ExportTraceServiceRequest.FromString(raw)
        with self._changed:
            self.headers.append(headers)
            self.raw.append(raw)
            if self.status == 200:
                self.spans += _spans(sent)
            self._changed.notify_all()

    def wait(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._changed:
            assert self._changed.wait_for(enough, max(0.0, deadline - time.monotonic())), self.names()

    def of(self, trace: str) -> list[Span]:
        return [span for span in self.spans if span.trace == trace]

    def one(self, name: str, trace: str | None = None) -> Span:
        (found,) = [s for s in self.spans if s.name == name and trace in {None, s.trace}]
        return found

    def above(self, span: Span) -> Span | None:
        return next((other for other in self.spans if other.id == span.parent), None)

    def below(self, span: Span) -> list[Span]:
        return [other for other in self.spans if other.parent == span.id]

    def names(self) -> list[str]:
        return [span.name for span in self.spans]


@contextmanager
def sink() -> Iterator[Sink]:
    kept = Sink()
    kept.go_on.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            kept.take({name.lower(): value for name, value in self.headers.items()}, body)
            kept.go_on.wait(PATIENCE_SECONDS)
            self.send_response(kept.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        kept.url = f"http://127.0.0.1:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        serving.start()
        try:
            yield kept
        finally:
            kept.go_on.set()
            server.shutdown()
            serving.join()


def _spans(sent: ExportTraceServiceRequest) -> list[Span]:
    return [
        _span(span, _values(resource.resource.attributes))
        for resource in sent.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _span(span: WireSpan, resource: dict[str, Any]) -> Span:
    return Span(
        span.name,
        _KINDS[span.kind],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        _values(span.attributes),
        span.status.code == 2,
        [link.span_id.hex() for link in span.links],
        span.start_time_unix_nano,
        resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in attributes}
