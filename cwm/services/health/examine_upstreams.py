"""Checks that the upstream servers and the store that gateways share are reachable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cwm.domain.errors import CwmError
from cwm.domain.upstream import Credentials, OfferKind, UpstreamSpec
from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.upstream import UpstreamConnector, UpstreamError
from cwm.services.health.findings import Finding, Findings, FindingStatus

SHARED_STORE = "shared store"


async def examine_upstreams(
    findings: Findings, connector: UpstreamConnector, specs: Sequence[UpstreamSpec]
) -> None:
    """Connect to all upstreams concurrently, list their tools, and disconnect."""
    findings.made.extend(await asyncio.gather(*(_upstream(connector, spec) for spec in specs)))


async def examine_shared_store(findings: Findings, store: AgentSessions) -> None:
    try:
        await store.alive("nobody")
    except CwmError as error:
        findings.fault(SHARED_STORE, error.message, "Check CWM_SHARED_STORE_URL (or CWM_REDIS_URL).")
    else:
        findings.ok(SHARED_STORE, "reachable")


async def _upstream(connector: UpstreamConnector, spec: UpstreamSpec) -> Finding:
    name = f"upstream {spec.name}"
    if spec.credentials is not Credentials.NONE:
        message = "not checked: it needs the caller's credentials"
        return Finding(name, FindingStatus.SKIPPED, message)
    where = "url" if spec.url else "command"
    try:
        session = await connector.open(spec)
        try:
            tools = await session.definitions(OfferKind.TOOLS)
            era = "2026-07-28" if session.modern else "an earlier revision"
        finally:
            await session.close(end=True)
    except UpstreamError as error:
        fix = f"Check upstreams.{spec.name}.{where} in cwm.yaml, and that it runs."
        return Finding(name, FindingStatus.FAULT, f"{error}", fix)
    if tools.missing is not None:
        fix = f"Mend it at the upstream, or raise the limit in upstreams.{spec.name} of cwm.yaml."
        return Finding(name, FindingStatus.WARN, tools.missing, fix)
    return Finding(name, FindingStatus.OK, f"speaks MCP of {era}, {len(tools.definitions)} tools")
