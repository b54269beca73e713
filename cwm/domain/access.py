"""What a principal may do, in the words of OAuth: scopes."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class Scope(StrEnum):
    """``windows:read`` reads sessions, too; ``sessions:write`` opens, continues and deletes them.

    ``tools:call`` is for all that upstream servers offer. ``admin`` holds every other one and is for what
    concerns a gateway as a whole: its metrics and its upkeep.
    """

    WINDOWS_READ = "windows:read"
    WINDOWS_WRITE = "windows:write"
    SESSIONS_WRITE = "sessions:write"
    CONTEXT_READ = "context:read"
    CONTEXT_WRITE = "context:write"
    TOOLS_CALL = "tools:call"
    ADMIN = "admin"


EVERY: Final = frozenset(Scope)
OF_AN_AGENT: Final = EVERY - {Scope.ADMIN}
"""What an agent needs to use everything there is for agents."""

NOTHING: Final[frozenset[Scope]] = frozenset()


def granted(names: Iterable[str]) -> frozenset[Scope]:
    """The scopes that ``names`` stand for; ``<noun>:*`` is every scope of a noun, an unknown name is none."""
    return frozenset(scope for name in names for scope in _meant(name))


def spelled(scopes: Iterable[Scope]) -> list[str]:
    """By name, in the order in which they are documented."""
    held = frozenset(scopes)
    return [scope.value for scope in Scope if scope in held]


def _meant(name: str) -> Iterable[Scope]:
    if name == Scope.ADMIN:
        return EVERY
    noun, colon, verb = name.partition(":")
    if colon and verb == "*":
        return [scope for scope in Scope if scope.startswith(f"{noun}:")]
    return [scope for scope in Scope if scope == name]
