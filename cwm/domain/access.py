"""OAuth scopes: what a principal may do."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class AccessScope(StrEnum):
    """What one grant allows.

    ``windows:read`` also covers reading sessions; ``sessions:write`` covers opening, continuing and deleting them.
    ``tools:call`` covers everything that upstream servers offer. ``admin`` includes every other scope but
    ``others:read`` and also covers the records of every session and window of the tenant; in the gateway's own tenant
    also the gateway as a whole (``cwm/domain/operators.py``). ``others:read`` covers what sessions and windows contain.
    """

    WINDOWS_READ = "windows:read"
    WINDOWS_WRITE = "windows:write"
    SESSIONS_WRITE = "sessions:write"
    CONTEXT_READ = "context:read"
    CONTEXT_WRITE = "context:write"
    TOOLS_CALL = "tools:call"
    ADMIN = "admin"
    OTHERS_READ = "others:read"


EVERY: Final = frozenset(AccessScope) - {AccessScope.OTHERS_READ}
"""Those of ``admin``."""
OF_AN_AGENT: Final = EVERY - {AccessScope.ADMIN}
"""The scopes that let an agent use everything agents can use."""

LOOKING: Final = frozenset(
    {AccessScope.WINDOWS_READ, AccessScope.CONTEXT_READ, AccessScope.ADMIN, AccessScope.OTHERS_READ}
)
"""Those that pages need which change nothing."""
OF_A_GUEST: Final = LOOKING - {AccessScope.CONTEXT_READ}
"""Those of somebody who looks at the records of another tenant."""

NOTHING: Final[frozenset[AccessScope]] = frozenset()


def granted(names: Iterable[str]) -> frozenset[AccessScope]:
    """The scopes that ``names`` grant: ``<noun>:*`` is every scope of that noun; unknown names grant nothing."""
    return frozenset(scope for name in names for scope in _scopes_of(name))


def spelled(scopes: Iterable[AccessScope]) -> list[str]:
    """The names of ``scopes``, in the documented order."""
    scope_set = frozenset(scopes)
    return [scope.value for scope in AccessScope if scope in scope_set]


def _scopes_of(name: str) -> Iterable[AccessScope]:
    if name == AccessScope.ADMIN:
        return EVERY
    noun, colon, verb = name.partition(":")
    if colon and verb == "*":
        return [scope for scope in AccessScope if scope.startswith(f"{noun}:")]
    return [scope for scope in AccessScope if scope == name]
