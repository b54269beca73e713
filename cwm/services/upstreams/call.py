"""One request to an upstream: retried where that is safe, with a metric, a span and a log line."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cwm.domain.errors import (
    CwmError,
    EngineTimeoutError,
    OutcomeUnknownError,
    UpstreamRejectionError,
    UpstreamUnavailableError,
)
from cwm.domain.principal import Principal
from cwm.ports.meter import Meter
from cwm.ports.tracing import Span, SpanKind, Tracer, named
from cwm.ports.upstream import (
    UpstreamBusyError,
    UpstreamDeniedError,
    UpstreamError,
    UpstreamLostError,
    UpstreamOversizeError,
    UpstreamRefusedError,
    UpstreamRejectedError,
    UpstreamSlowError,
)
from cwm.services.upstreams.link import Link

_log = logging.getLogger("cwm.upstream")


@contextmanager
def recorded(
    meter: Meter, tracer: Tracer, link: Link, principal: Principal, method: str, params: Mapping[str, Any]
) -> Iterator[Span]:
    """Record the operation ``upstream_<name>``, a span, and a log line of who requested what, without arguments and result.

    Only tools and prompts are named: the URI of a resource can contain an argument.
    """
    request = f"{method} {params['name']!r}" if "name" in params else method
    outcome, started = "interrupted", time.perf_counter()
    try:
        with _traced(tracer, link, method, params) as span, meter.operation(f"upstream_{link.spec.name}"):
            yield span
        outcome = "success"
    except CwmError as error:
        outcome = error.code
        raise
    except UpstreamRefusedError as error:
        outcome = f"refused ({error.code})"
        raise
    finally:
        elapsed_ms = (time.perf_counter() - started) * 1000
        _log.info(
            "upstream %s: %s for %s/%s in %.1f ms: %s",
            *(link.spec.name, request, principal.tenant, principal.subject, elapsed_ms, outcome),
        )


@contextmanager
def _traced(tracer: Tracer, link: Link, method: str, params: Mapping[str, Any]) -> Iterator[Span]:
    name = named(params.get("name"))
    span_attributes = {
        "mcp.method.name": method,
        "service.peer.name": link.spec.name,
        "network.transport": "pipe" if link.spec.command else "tcp",
    }
    if name is not None and method == "tools/call":
        span_attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    elif name is not None:
        span_attributes["gen_ai.prompt.name"] = name
    with tracer.span(
        method if name is None else f"{method} {name}", SpanKind.CLIENT, span_attributes
    ) as span:
        try:
            yield span
        except UpstreamRefusedError as error:
            span.note({"rpc.response.status_code": str(error.code)})
            span.failed(str(error.code))
            raise


async def once_more(
    link: Link, ask: Callable[[], Awaitable[dict[str, Any]]], *, repeatable: bool
) -> dict[str, Any]:
    """Call ``ask``; repeat it after a failure that allows it, once for each type of failure."""
    failures: set[type[UpstreamError]] = set()
    while True:
        try:
            return await ask()
        except UpstreamRefusedError:
            raise
        except UpstreamOversizeError as error:
            raise _oversize(link, error) from error
        except UpstreamError as error:
            if type(error) in failures or not _again(error, repeatable=repeatable):
                raise _final(link, error, repeatable=repeatable) from error
            failures.add(type(error))


def rejected(name: str, reason: str, **status: int) -> CwmError:
    return UpstreamRejectionError(
        f"Upstream {name} rejects the request: {reason}.", upstream=name, reason=reason, **status
    )


def not_there(name: str, reason: str) -> CwmError:
    return UpstreamUnavailableError(f"Upstream {name} is not there: {reason}.", upstream=name, reason=reason)


def _oversize(link: Link, error: UpstreamOversizeError) -> CwmError:
    name = link.spec.name
    return OutcomeUnknownError(
        f"The answer of upstream {name} was dropped: {error}. What was asked may have been done, and the same request "
        "gets the same answer. Ask it for less at a time; the gateway's operator can raise "
        f"upstreams.{name}.message_bytes in cwm.yaml.",
        upstream=name,
        reason="oversize",
        limit_bytes=link.spec.bounds.message_bytes,
    )


def _again(error: UpstreamError, *, repeatable: bool) -> bool:
    """Whether to repeat the request. Never after a timeout, which would take as long again, or after a plain no."""
    if isinstance(error, UpstreamSlowError | UpstreamBusyError | UpstreamRejectedError):
        return False
    return repeatable or not isinstance(error, UpstreamLostError)


def _final(link: Link, error: UpstreamError, *, repeatable: bool) -> CwmError:
    name = link.spec.name
    if isinstance(error, UpstreamDeniedError | UpstreamRejectedError):
        status = {"status": error.status} if isinstance(error, UpstreamRejectedError) else {}
        return rejected(name, str(error), **status)
    if isinstance(error, UpstreamBusyError):
        return _busy(name, error)
    if not isinstance(error, UpstreamLostError):
        return not_there(name, str(error))
    if isinstance(error, UpstreamSlowError):
        return _slow(link, repeatable=repeatable)
    if not repeatable:
        return OutcomeUnknownError(
            f"Upstream {name} was lost during the call ({error}): it may or may not have been done. "
            "Look before you repeat it.",
            upstream=name,
        )
    return UpstreamUnavailableError(
        f"Upstream {name} was lost twice: {error}.", upstream=name, reason=str(error)
    )


def _slow(link: Link, *, repeatable: bool) -> CwmError:
    name, seconds = link.spec.name, link.spec.call_seconds
    total = max(seconds, link.spec.total_seconds)
    advice = "" if repeatable else " It may or may not have been done. Look before you repeat it."
    error = EngineTimeoutError(
        f"Upstream {name} took longer than {seconds:g} s without progress, or {total:g} s in all.{advice}",
        upstream=name,
    )
    error.retryable = repeatable
    return error


def _busy(name: str, error: UpstreamBusyError) -> CwmError:
    context: dict[str, Any] = {"upstream": name, "reason": str(error), "status": error.status}
    when = ""
    if error.retry_after is not None:
        seconds = context["retry_after_seconds"] = max(1, math.ceil(error.retry_after))
        when = f" Ask again in {seconds} s."
    return UpstreamUnavailableError(f"Upstream {name}: {error}. It was not done.{when}", **context)
