"""Builds every key of the shared store; every key of a tenant's data contains the tenant.

Names are escaped, so that no two things share a key, whatever tenants, owners and handles are called. Scripts
that build keys get the tenant from :func:`room`.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

_PREFIX: Final = "cwm:"


def room(tenant: str) -> str:
    """The tenant, escaped for keys."""
    return quote(tenant, safe="")


def tenant_key(kind: str, tenant: str, *names: str) -> str:
    """``cwm:<kind>:<name>:…:<tenant>``"""
    return _PREFIX + ":".join([kind, *(quote(name, safe="") for name in names), room(tenant)])


def tenant_prefix(kind: str, tenant: str, name: str) -> str:
    """``cwm:<kind>:<tenant>/<name>/``, the prefix of several keys."""
    return f"{_PREFIX}{kind}:{room(tenant)}/{quote(name, safe=':')}/"


def key_of_every_tenant(kind: str) -> str:
    """A key for upkeep over all tenants; its members contain their tenant."""
    return _PREFIX + kind


def session_key(agent_session: str) -> str:
    """The key of an agent session. Its id cannot be guessed; the owner is stored inside and checked on every use."""
    return f"{_PREFIX}agent-session:{agent_session}"


def left_key(agent_session: str = "") -> str:
    """The key of the state that outlasts an agent session; without an id, the prefix of such keys."""
    return f"{_PREFIX}agent-session-left:{agent_session}"


def ended_key(agent_session: str) -> str:
    """The key of the id of the request that ended an agent session."""
    return f"{_PREFIX}agent-session-ended:{agent_session}"


def digest_key(kind: str, digest: str = "") -> str:
    """A key by a digest that includes the tenant; without a digest, the prefix of such keys."""
    return f"{_PREFIX}{kind}:{digest}" if digest else f"{_PREFIX}{kind}"
