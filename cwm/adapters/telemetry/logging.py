"""Configures the logs of CWM and its libraries: one stream, one format."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any, Final, TextIO

import structlog
import structlog.tracebacks
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from cwm.adapters.telemetry.redaction import HIDDEN
from cwm.domain.visible_text import visible

# Least levels: these libraries log every request of every client, while our logs are about events of CWM.
_QUIET: Final = {
    "uvicorn": logging.WARNING,
    "uvicorn.access": logging.WARNING,
    "uvicorn.error": logging.WARNING,
    "fastmcp": logging.WARNING,
    # The MCP face logs failures of tools and resources once, with their code.
    "fastmcp.server.server": logging.CRITICAL,
    "mcp": logging.WARNING,
    # It would log upstreams' answers; the caller gets the error anyway.
    "mcp.client.streamable_http": logging.CRITICAL,
    # It logs everything sent to clients, verbatim.
    "sse_starlette": logging.WARNING,
    "httpx2": logging.WARNING,
    "httpcore2": logging.WARNING,
    "sqlalchemy": logging.WARNING,
    "alembic": logging.WARNING,
    "watchfiles": logging.WARNING,
    # It logs every failed batch; our exporter logs when failures begin and when they end.
    "opentelemetry": logging.CRITICAL,
}
_TRACE: Final = "opentelemetry.trace"

# Without local variables: they contain prompts and secrets.
_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


def configure_logging(level: str, fmt: str = "auto") -> None:
    """Write logs from ``level`` on to standard error, with timestamps in UTC.

    ``fmt`` is ``console``, ``json`` or ``auto`` (console on a terminal, otherwise JSON). Standard output is for
    commands' output and for MCP over stdio.
    """
    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _in_trace,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    # Past the sign that the command's stream writes for each escape: the colours are ours.
    handler = logging.StreamHandler(getattr(sys.stderr, "rich_proxied_file", sys.stderr))
    handler.setFormatter(_formatter(shared, console=console))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.captureWarnings(capture=True)
    set_level(level)


def set_level(level: str) -> None:
    """Log from ``level`` on; verbose libraries start at a higher level of their own."""
    root = logging.getLogger()
    root.setLevel(level)
    for name, least in _QUIET.items():
        _route(name, max(least, root.level))


def _in_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the ids of the current span. Without tracing, OpenTelemetry is not even imported."""
    if (api := sys.modules.get(_TRACE)) is not None:
        context = api.get_current_span().get_span_context()
        if context.is_valid:
            event["trace_id"], event["span_id"] = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    return event


def _formatter(shared: list[Processor], *, console: bool) -> structlog.stdlib.ProcessorFormatter:
    renderers: list[Processor] = (
        [
            _visible_event,
            structlog.dev.ConsoleRenderer(
                colors=console and sys.stderr.isatty(), exception_formatter=_visible_traceback
            ),
        ]
        if console
        else [_TRACEBACKS, structlog.processors.JSONRenderer(default=_as_text)]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers, HIDDEN],
    )


def _visible_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Text of upstreams, engines and callers without what a terminal would obey. Other values are shown by ``repr``."""
    return {name: visible(value) if isinstance(value, str) else value for name, value in event.items()}


def _visible_traceback(stream: TextIO, error: ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write(visible(text.getvalue()))


def _route(name: str, least: int) -> None:
    """Send a library's logs to the root's handler in place of its own handlers."""
    logger = logging.getLogger(name)
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(least)


def _as_text(value: Any) -> str:
    return str(value)
