"""Rate limits from the settings, counted in the shared store if there is one, else in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cwm.adapters.limits.counts import LimitsRequestCounts
from cwm.adapters.local.identity import LocalIdentity
from cwm.adapters.memory.running_requests import InProcessRunningRequests
from cwm.domain.limits import LimitRules
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.ports.identity import Identity
from cwm.ports.limits import RequestCounts, RunningRequests
from cwm.ports.meter import Meter
from cwm.services.access.body_room import BodyRoom
from cwm.services.access.limits import CountStore, Limits
from cwm.settings import Settings
from cwm.settings.urls import on_loopback

if TYPE_CHECKING:
    from redis.asyncio import Redis


def build_limits(
    settings: Settings,
    client: Redis | None,
    identity: Identity,
    audit: AuditLog,
    meter: Meter,
    clock: Clock,
) -> Limits:
    """``client`` reaches the shared store and never retries a command."""
    counts, running = _store(client)
    return Limits(
        rules=limit_rules(settings, identity),
        counts=counts,
        running=running,
        store=CountStore(refuse=settings.limits.rate_limit_on_failure == "refuse", meter=meter, clock=clock),
        audit=audit,
        meter=meter,
        clock=clock,
        bodies=_body_room(settings, identity),
    )


def limit_rules(settings: Settings, identity: Identity) -> LimitRules:
    """By default only a single user on loopback has no limits."""
    return settings.limits.rules(
        shared_with_others=shared_with_others(settings, identity),
        users_known=not isinstance(identity, LocalIdentity),
    )


def shared_with_others(settings: Settings, identity: Identity) -> bool:
    """Whether more people than the one at this machine may use the gateway."""
    return not isinstance(identity, LocalIdentity) or not on_loopback(settings.http.host)


def _body_room(settings: Settings, identity: Identity) -> BodyRoom:
    most, most_of_one = settings.limits.body_memory_bytes, settings.limits.body_memory_principal_bytes
    if most_of_one is None:
        most_of_one = most if isinstance(identity, LocalIdentity) else most // 4
    largest = settings.http.max_body_bytes
    return BodyRoom(max(most, largest), max(most_of_one, largest))


def _store(client: Redis | None) -> tuple[RequestCounts, RunningRequests]:
    if client is None:
        local = LimitsRequestCounts(_in_process)
        return local, InProcessRunningRequests(local)
    from cwm.adapters.redis.limits.request_counts import redis_request_counts
    from cwm.adapters.redis.limits.running_requests import RedisRunningRequests
    from cwm.adapters.redis.limits.trips import Trips

    trips = Trips(client)
    counts = redis_request_counts(client, trips)
    return counts, RedisRunningRequests(trips, counts)


def _in_process() -> Any:
    from cwm.adapters.limits.in_process import InProcessStorage

    return InProcessStorage()
