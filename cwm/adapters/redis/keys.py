"""Every key of the shared store is made here, and every key of a tenant's things holds the tenant.

Names are escaped: whatever a tenant, an owner or a handle is called, no two things ever share a key. Scripts
that make keys of their own get the tenant as :func:`room` spells it.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

_PREFIX: Final = "cwm:"


def room(tenant: str) -> str:
    """The tenant as it stands in keys."""
    return quote(tenant, safe="")


def tenant_key(kind: str, tenant: str, *names: str) -> str:
    """``cwm:<kind>:<name>:…:<tenant>``"""
    return _PREFIX + ":".join([kind, *(quote(name, safe="") for name in names), room(tenant)])


def tenant_prefix(kind: str, tenant: str, name: str) -> str:
    """``cwm:<kind>:<tenant>/<name>/``, which several keys begin with."""
    return f"{_PREFIX}{kind}:{room(tenant)}/{quote(name, safe=':')}/"


def key_of_every_tenant(kind: str) -> str:
    """For upkeep that goes over all tenants; what stands in it names its tenant."""
    return _PREFIX + kind


def session_key(agent_session: str) -> str:
    """By an id that nobody can guess; whose it is stands inside and is compared with each use."""
    return f"{_PREFIX}agent-session:{agent_session}"


def left_key(agent_session: str = "") -> str:
    """What an agent session leaves when it expires; without an id, what such keys begin with."""
    return f"{_PREFIX}agent-session-left:{agent_session}"


def ended_key(agent_session: str) -> str:
    """By which request an agent session ended."""
    return f"{_PREFIX}agent-session-ended:{agent_session}"


def digest_key(kind: str, digest: str = "") -> str:
    """By a digest that the tenant went into; without one, what such keys begin with."""
    return f"{_PREFIX}{kind}:{digest}" if digest else f"{_PREFIX}{kind}"
