"""The health of every component, and statistics of the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Final

from cwm.domain.addresses import without_addresses
from cwm.domain.engine_health import EngineHealth
from cwm.domain.errors import CwmError, InvalidParameterError
from cwm.domain.operators import Operators
from cwm.domain.principal import Principal
from cwm.ports.clock import Clock
from cwm.ports.engine import Counters, Engine
from cwm.ports.kv_tier import KvTier, TierUsage
from cwm.ports.registry import Registry
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.reuse import Reuse, ReusedTokens, share_of
from cwm.services.upstreams.link import LinkState
from cwm.services.upstreams.upstreams import UpstreamHealth

WITHOUT_COORDINATOR: Final = "Without it turns, new sessions, thaws and moves go on; freezes, clones and deletions fail until it answers."


class Status(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Component:
    """The state of one component. ``latency_ms``: duration of the check. ``since``: when it was first seen unhealthy."""

    name: str
    status: Status
    message: str
    latency_ms: float
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Health:
    status: Status
    uptime_seconds: float
    version: str
    components: tuple[Component, ...]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Statistics of a tenant. Hit rates are shares (0-1); blocks and bytes count the distinct chunks of its windows.

    ``engine`` is None for who does not run the gateway. ``sessions``: how many, by state.
    """

    total_blocks: int
    total_bytes: int
    reused: ReusedTokens
    vllm_connected: bool
    engine: EngineStats | None
    windows: int = 0
    sessions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's totals of all tenants since it started: hit rates, cached prompt tokens, and what the tiers hold."""

    kv_hit_rate: float
    prefix_hit_rate: float
    cached_tokens: int
    tiers: tuple[TierUsage, ...]


_NEEDED: Final = frozenset({"vllm", "registry"})
UPSTREAM: Final = "upstream:"
"""The prefix of an upstream's component name."""
ENGINE: Final = "engine:"
"""The prefix of the component name of one of several engines."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """Checks components and collects statistics.

    ``cache_fault`` returns a known fault of a cache whose parts all answer, or None; ``audit_fault`` of the audit log. ``upstreams`` returns the state of
    the upstream servers, ``directory`` knows the engines. ``shared_store`` raises unless the store that gateways share answers; None if there is none.
    A check takes at most ``check_seconds``.
    """

    registry: Registry
    engine: Engine
    kv_tier: KvTier
    clock: Clock
    version: str
    started: float
    operators: Operators
    cache_fault: Callable[[], str | None]
    upstreams: Callable[[], list[UpstreamHealth]]
    reuse: Reuse
    audit_fault: Callable[[], str | None]
    shared_store: Callable[[], Awaitable[None]] | None = None
    directory: EngineDirectory | None = None
    check_seconds: float = 3.0
    _unhealthy_since: dict[str, datetime] = field(default_factory=dict)

    async def watch(self, interval_seconds: float) -> None:
        """Check all components again and again, so that ``since`` is right although nobody asks. Runs until cancelled."""
        while True:
            await asyncio.sleep(interval_seconds)
            await self.health()

    async def health(self, component: str | None = None, principal: Principal | None = None) -> Health:
        """Check all components concurrently, or only ``component``. CWM-1003 if it does not exist.

        A ``principal`` that does not run the gateway sees, of several engines, those that serve its tenant, and no reason with an address.
        """
        tenant = principal.tenant if principal is not None and self.is_partial(principal) else ""
        checks: dict[str, Callable[[], Awaitable[tuple[Status, str]]]] = {
            "kv_store": partial(self._kv_store, tenant),
            "vllm": partial(self._vllm, tenant),
            "registry": self._registry,
            "coordinator": self._coordinator,
        }
        if self.shared_store is not None:
            checks["shared_store"] = partial(_shared_store, self.shared_store)
        if (engines := self.engines(tenant)) and (component is None or component.startswith(ENGINE)):
            drained = await self._drained()
            checks.update({f"{ENGINE}{name}": partial(self._engine_there, name, drained) for name in engines})
        upstreams = {f"{UPSTREAM}{each.name}": each for each in self.upstreams()}
        checks.update({name: partial(_upstream, each) for name, each in upstreams.items()})
        if component is not None and component not in checks:
            raise InvalidParameterError(f"component: one of {', '.join(checks)}.", field="component")
        names = [component] if component else list(checks)
        results = await asyncio.gather(*(self._timed(name, checks[name]) for name in names))
        if tenant:
            components = [_without_reason(each) for each in results]
        else:
            components = [self._dated(each, upstreams.get(each.name)) for each in results]
        health = Health(
            status=_overall(components),
            uptime_seconds=round(self.clock.monotonic() - self.started, 3),
            version=self.version,
            components=tuple(components),
        )
        return health if principal is None else self.shown_to(principal, health)

    def shown_to(self, principal: Principal, health: Health) -> Health:
        """Without addresses and paths, unless the caller runs the gateway."""
        if self.operators.have(principal):
            return health
        components = [replace(each, message=without_addresses(each.message)) for each in health.components]
        return replace(health, components=tuple(components))

    def is_partial(self, principal: Principal | None) -> bool:
        """Whether a caller sees a part of the installation only."""
        if principal is None or self.directory is None or self.directory.is_one:
            return False
        return not self.operators.have(principal)

    def engines(self, tenant: str = "") -> dict[str, bool]:
        """Whether each engine that serves a tenant answers, of several engines by name; empty if there is one."""
        if self.directory is None or len(self.engine.names()) == 1:
            return {}
        names = self.directory.names(tenant, any_state=True)
        return {name: self.directory.health.get(name, EngineHealth()).is_up for name in names}

    async def _drained(self) -> Mapping[str, datetime]:
        try:
            async with asyncio.timeout(self.check_seconds):
                return await self.registry.drained_engines()
        except (CwmError, TimeoutError):
            return {}

    async def _engine_there(self, name: str, drained: Mapping[str, datetime]) -> tuple[Status, str]:
        assert self.directory is not None
        health = self.directory.health.get(name, EngineHealth())
        if not health.is_up:
            return Status.DEGRADED, health.reason
        since = drained.get(name)
        message = "OK" if since is None else f"being drained since {since:%Y-%m-%d %H:%M} UTC"
        differing = self.directory.known_deployments(name)
        remarks = (
            f"; {model} in deployment {deployment}, not the only one"
            for model, deployment in differing.items()
        )
        no_reuse = self.directory.no_reuse(name)
        return Status.HEALTHY, "".join([message, *remarks, f"; {no_reuse}" if no_reuse else ""])

    def _dated(self, component: Component, upstream: UpstreamHealth | None) -> Component:
        if component.status is Status.HEALTHY:
            self._unhealthy_since.pop(component.name, None)
            return component
        since = self._unhealthy_since.setdefault(component.name, self.clock.now())
        return replace(component, since=upstream.since if upstream else since)

    async def cache_stats(self, principal: Principal) -> CacheStats:
        """The tenant's figures; for who runs the gateway also the engine's, with zeros if it does not answer."""
        totals = await self.registry.totals(principal.tenant)
        try:
            counters = await self.engine.counters()
        except CwmError:
            counters = None
        return CacheStats(
            total_blocks=totals.chunks,
            total_bytes=totals.chunk_bytes,
            reused=self.reuse.of(principal.tenant),
            vllm_connected=counters is not None,
            engine=await self._engine(counters) if self.operators.have(principal) else None,
            windows=totals.windows,
            sessions=totals.sessions,
        )

    async def _engine(self, counters: Counters | None) -> EngineStats:
        try:
            tiers = tuple(await self.kv_tier.usage())
        except CwmError:
            tiers = ()
        if counters is None:
            return EngineStats(0.0, 0.0, 0, tiers)
        return EngineStats(
            kv_hit_rate=share_of(counters.external_hits, counters.external_queries),
            prefix_hit_rate=share_of(counters.prefix_hits, counters.prefix_queries),
            cached_tokens=_cached(counters.prompt_tokens_by_source),
            tiers=tiers,
        )

    async def _timed(self, name: str, check: Callable[[], Awaitable[tuple[Status, str]]]) -> Component:
        started = self.clock.monotonic()
        try:
            async with asyncio.timeout(self.check_seconds):
                status, message = await check()
        except CwmError as error:
            status, message = Status.UNHEALTHY, error.message
        except TimeoutError:
            status, message = Status.UNHEALTHY, f"It did not answer within {self.check_seconds:g} s."
        return Component(name, status, message, round((self.clock.monotonic() - started) * 1000, 3))

    async def _registry(self) -> tuple[Status, str]:
        await self.registry.ping()
        fault = self.audit_fault()
        return (Status.HEALTHY, "OK") if fault is None else (Status.DEGRADED, fault)

    async def _coordinator(self) -> tuple[Status, str]:
        try:
            server_count = await self.kv_tier.registered()
        except CwmError as error:
            return Status.UNHEALTHY, f"{error.message} {WITHOUT_COORDINATOR}"
        if server_count is None:
            return Status.HEALTHY, "This engine has no LMCache and needs no coordinator."
        if server_count == 0:
            return Status.DEGRADED, "No LMCache is registered with the coordinator."
        return Status.HEALTHY, f"knows {server_count} LMCache {'server' if server_count == 1 else 'servers'}"

    async def _vllm(self, tenant: str) -> tuple[Status, str]:
        if self.directory is None or (len(self.engine.names()) == 1 and not tenant):
            await self.engine.health()
            return Status.HEALTHY, f"serves {', '.join(model.id for model in await self.engine.models())}"
        names = self.directory.names(tenant, any_state=True)
        # Nobody is asked: an engine that hangs must not make the others look away.
        away = [name for name in names if not self.directory.is_there(name)]
        if len(away) == len(names):
            return Status.UNHEALTHY, "No engine answers."
        message = f"serves {', '.join(self.directory.models(tenant))}"
        if away:
            return Status.DEGRADED, f"{message}; not there: {', '.join(away)}"
        return Status.HEALTHY, message

    async def _kv_store(self, tenant: str) -> tuple[Status, str]:
        facts = await self.kv_tier.facts()
        if facts is None:
            return Status.DEGRADED, "This engine has no LMCache: windows keep tokens, thaws recompute."
        if reason := self._no_reuse(attached=bool(facts.attached)):
            return Status.DEGRADED, f"{reason} Windows keep tokens, thaws recompute."
        if not facts.attached:
            return Status.DEGRADED, "No vLLM is attached to LMCache."
        fault = self.cache_fault()
        if fault is not None:
            return Status.DEGRADED, fault
        if away := await self._without_cache(tenant):
            return Status.DEGRADED, f"No LMCache answers beside {', '.join(away)}."
        return Status.HEALTHY, f"LMCache {facts.version}, {', '.join(facts.adapters) or 'no lower tier'}"

    def _no_reuse(self, *, attached: bool) -> str:
        """Why the engine reuses no KV, as far as is known. Of several engines each says it itself, unless none is ``attached``."""
        if self.directory is None or (attached and not self.directory.is_one):
            return ""
        return self.directory.no_reuse()

    async def _without_cache(self, tenant: str) -> list[str]:
        """Of several engines those that serve a tenant and whose LMCache does not answer."""
        names = [*self.engines(tenant)]
        each = (self.kv_tier.beside(name).facts() for name in names)
        answers = await asyncio.gather(*each, return_exceptions=True)
        return [name for name, answer in zip(names, answers, strict=True) if isinstance(answer, CwmError)]


async def _shared_store(check: Callable[[], Awaitable[None]]) -> tuple[Status, str]:
    await check()
    return Status.HEALTHY, "OK"


async def _upstream(upstream: UpstreamHealth) -> tuple[Status, str]:
    if upstream.state is not LinkState.READY:
        return Status.DEGRADED, upstream.reason or upstream.state.value
    if upstream.tools is None:
        return Status.HEALTHY, "what it offers depends on who calls"
    if upstream.missing:
        return Status.DEGRADED, "; ".join(upstream.missing)
    return Status.HEALTHY, f"offers {upstream.tools} tools"


def _without_reason(component: Component) -> Component:
    """For a caller who must not learn where the parts of an installation are, nor of other tenants' engines."""
    is_plain = component.name.startswith(UPSTREAM) or component.name == "vllm"
    if component.status is Status.HEALTHY or (is_plain and component.status is Status.DEGRADED):
        return component
    return replace(component, message="It does not answer as it should.")


def _overall(components: list[Component]) -> Status:
    """Unhealthy if vLLM or the registry is down; otherwise degraded if anything is, as turns still work."""
    if any(c.status is Status.UNHEALTHY and c.name in _NEEDED for c in components):
        return Status.UNHEALTHY
    if any(c.status is not Status.HEALTHY for c in components):
        return Status.DEGRADED
    return Status.HEALTHY


def _cached(by_source: Mapping[str, float]) -> int:
    return round(sum(tokens for source, tokens in by_source.items() if source != "local_compute"))
