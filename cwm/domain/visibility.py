"""Visibility: who may see a session or window, and what they may do with it. Every decision about that is made here.

Each session and window has a circle: ``owner:<subject>``, ``workspace:<name>`` or ``tenant``. A principal is in its own
circle, in those of its workspaces, and in its tenant's. What its owner calls ``private`` has the owner's circle.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, Protocol

from cwm.domain.access import AccessScope
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import OWNER, TENANT, Principal

PRIVATE: Final = "private"
WORKSPACE_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)
VISIBILITY_PATTERN: Final = r"^(private|tenant|workspace:[a-zA-Z0-9_.-]{1,64})$"
_VISIBILITY: Final = re.compile(VISIBILITY_PATTERN[1:-1], re.ASCII)


class Right(Enum):
    """What somebody may do: see a record (sizes and states), read or copy the contents, use it (go on, freeze, change), delete it."""

    RECORD = auto()
    CONTENTS = auto()
    USE = auto()
    DELETE = auto()


_OUTSIDERS: Final = {
    Right.RECORD: frozenset({AccessScope.ADMIN, AccessScope.OTHERS_READ}),
    Right.CONTENTS: frozenset({AccessScope.OTHERS_READ}),
    Right.USE: frozenset[AccessScope](),
    Right.DELETE: frozenset({AccessScope.ADMIN}),
}
"""The scopes, of which one gives the right to a principal outside the circle."""


class Owned(Protocol):
    """A session or a window."""

    @property
    def owner(self) -> str: ...
    @property
    def circle(self) -> str: ...


def may(principal: Principal, circle: str, right: Right) -> bool:
    """Whether the principal has the right on what has this circle, in its own tenant."""
    return circle in principal.circles or has_everywhere(principal, right)


def has_everywhere(principal: Principal, right: Right) -> bool:
    """Whether a scope gives the principal the right on everything in its tenant."""
    return bool(_OUTSIDERS[right] & principal.scopes)


def visibility_of(circle: str) -> str:
    """``private``, ``workspace:<name>`` or ``tenant``."""
    return PRIVATE if circle.startswith(OWNER) else circle


def circle_of(visibility: str, principal: Principal) -> str:
    """The circle of what the principal owns. CWM-1003 for a malformed visibility and a workspace that it is not a member of."""
    if not _VISIBILITY.fullmatch(visibility):
        raise InvalidParameterError(
            "visibility is private, tenant or workspace:<name>.", field="visibility"
        ).refusing(visibility)
    circle = f"{OWNER}{principal.subject}" if visibility == PRIVATE else visibility
    if circle not in principal.circles:
        raise InvalidParameterError(
            f"visibility: you are no member of {visibility}.", field="visibility", visibility=visibility
        )
    return circle


def circle_of_new(
    principal: Principal,
    visibility: str | None,
    default: str,
    source: Owned | None = None,
    *,
    copy: bool = True,
) -> str:
    """The circle of what a principal makes, of ``source`` if given: ``visibility``, else the ``default``.

    A copy is by default not more visible than its source. CWM-1003 as for :func:`circle_of`, and when somebody else than the
    source's owner would make it more visible.
    """
    limit = None if source is None else visibility_of(source.circle)
    own = source is None or source.owner == principal.subject
    if visibility is None:
        if limit is not None and _exceeds(default, limit) and (copy or not own):
            default = limit if limit in principal.circles else PRIVATE
        return circle_of(default, principal)
    circle = circle_of(visibility, principal)
    if limit is not None and _exceeds(visibility, limit) and not own:
        raise InvalidParameterError(
            f"visibility: only its owner makes more visible what is {limit}.",
            field="visibility",
            visibility=limit,
        )
    return circle


def _exceeds(visibility: str, limit: str) -> bool:
    """Whether somebody may see the one and not the other."""
    return visibility not in {PRIVATE, limit} and limit != TENANT
