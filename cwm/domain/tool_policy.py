"""What holds for the results and arguments of a tool: how much may be delivered, and how the rest is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from cwm.domain.limits import NO_TOOL, ToolRates


class PreviewKind(StrEnum):
    """How a result over budget is shown."""

    AUTO = "auto"
    """By what the result is: a list is paged, an object projected, text extracted from, a log cut."""
    PAGE = "page"
    PROJECT = "project"
    EXTRACT = "extract"
    HEAD = "head"
    TAIL = "tail"


class SharingScope(StrEnum):
    """Who is answered from the same cached result."""

    SESSION = "session"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """For how long a result may be given to others; ``key`` names the arguments that matter, empty for all."""

    ttl_seconds: float
    key: tuple[str, ...] = ()
    scope: SharingScope = SharingScope.TENANT


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """``max_tokens`` is delivered whole, None for any amount; a preview of more takes ``preview_tokens`` at most.

    ``fields`` are the paths that a projection keeps (``items[*].name``), ``keywords`` what an extract looks
    for. ``references`` admits by-reference arguments. ``shared`` lets others of the tenant read stored
    results by their handle. ``rates`` are how often the tool may be called.
    """

    max_tokens: int | None = 10_000
    preview_tokens: int = 2_000
    preview: PreviewKind = PreviewKind.AUTO
    fields: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    references: bool = False
    shared: bool = False
    result_ttl_seconds: float = 3_600.0
    cache: CachePolicy | None = None
    rates: ToolRates = NO_TOOL


@dataclass(frozen=True, slots=True)
class ToolPolicies:
    """Policies by tool name, or by a pattern of them such as ``github_*``."""

    default: ToolPolicy = ToolPolicy()
    by_name: Mapping[str, ToolPolicy] = field(default_factory=dict)

    def of(self, tool: str) -> ToolPolicy:
        """The one under its own name, else under the first pattern that matches, else the default."""
        if (exact := self.by_name.get(tool)) is not None:
            return exact
        for pattern, policy in self.by_name.items():
            if fnmatchcase(tool, pattern):
                return policy
        return self.default
