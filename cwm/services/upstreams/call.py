"""One request to an upstream: retried where that is safe, with a metric, a span and a log line."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cwm.domain.errors import CwmError, EngineTimeoutError, OutcomeUnknownError, UpstreamUnavailableError
from cwm.domain.principal import Principal
from cwm.ports.meter import Meter
from cwm.ports.tracing import Kind, Span, Tracer, named
from cwm.ports.upstream import (
    UpstreamError,
    UpstreamLostError,
    UpstreamRefusedError,
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
    asked = f"{method} {params['name']!r}" if "name" in params else method
    outcome, started = "interrupted", time.perf_counter()
    try:
        with _traced(tracer, link, method, params) as span, meter.operation(f"upstream_{link.spec.name}"):
            yield span
        outcome = "success"
    except CwmError as failed:
        outcome = failed.code
        raise
    except UpstreamRefusedError as refused:
        outcome = f"refused ({refused.code})"
        raise
    finally:
        elapsed_ms = (time.perf_counter() - started) * 1000
        _log.info(
            "upstream %s: %s for %s/%s in %.1f ms: %s",
            *(link.spec.name, asked, principal.tenant, principal.subject, elapsed_ms, outcome),
        )


@contextmanager
def _traced(tracer: Tracer, link: Link, method: str, params: Mapping[str, Any]) -> Iterator[Span]:
    name = named(params.get("name"))
    told = {
        "mcp.method.name": method,
        "service.peer.name": link.spec.name,
        "network.transport": "pipe" if link.spec.command else "tcp",
    }
    if name is not None and method == "tools/call":
        told |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    elif name is not None:
        told["gen_ai.prompt.name"] = name
    with tracer.span(method if name is None else f"{method} {name}", Kind.CLIENT, told) as span:
        try:
            yield span
        except UpstreamRefusedError as refused:
            span.note({"rpc.response.status_code": str(refused.code)})
            span.failed(str(refused.code))
            raise


async def once_more(
    link: Link, ask: Callable[[], Awaitable[dict[str, Any]]], *, repeatable: bool
) -> dict[str, Any]:
    """Call ``ask``; repeat it after a failure that allows it, once for each type of failure."""
    met: set[type[UpstreamError]] = set()
    while True:
        try:
            return await ask()
        except UpstreamRefusedError:
            raise
        except UpstreamError as failed:
            if type(failed) in met or not _again(failed, repeatable=repeatable):
                raise _final(link, failed, repeatable=repeatable) from failed
            met.add(type(failed))


def _again(failed: UpstreamError, *, repeatable: bool) -> bool:
    """Whether to repeat the request. Never after a timeout: it would take as long again."""
    if isinstance(failed, UpstreamSlowError):
        return False
    return repeatable or not isinstance(failed, UpstreamLostError)


def _final(link: Link, failed: UpstreamError, *, repeatable: bool) -> CwmError:
    name = link.spec.name
    if not isinstance(failed, UpstreamLostError):
        return UpstreamUnavailableError(
            f"Upstream {name} is not there: {failed}.", upstream=name, reason=str(failed)
        )
    if not repeatable:
        return OutcomeUnknownError(
            f"Upstream {name} was lost during the call ({failed}): it may or may not have been done. "
            "Look before you repeat it.",
            upstream=name,
        )
    if isinstance(failed, UpstreamSlowError):
        return EngineTimeoutError(
            f"Upstream {name} took longer than {link.spec.call_seconds:g} s.", upstream=name
        )
    return UpstreamUnavailableError(
        f"Upstream {name} was lost twice: {failed}.", upstream=name, reason=str(failed)
    )
