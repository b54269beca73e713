"""Policies of a tool's results and arguments: how much is delivered, and how the rest is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from cwm.domain.limits import NO_TOOL, ToolRates


class PreviewKind(StrEnum):
    """How a result over budget is shown."""

    AUTO = "auto"
    """By the result's type: page a list, project an object, extract from a text, cut a log."""
    PAGE = "page"
    PROJECT = "project"
    EXTRACT = "extract"
    HEAD = "head"
    TAIL = "tail"


class SharingScope(StrEnum):
    """Who may be answered from the same cached result."""

    SESSION = "session"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """How long a result may be reused, and by whom.

    ``key`` names the arguments that must match; empty means all of them.
    """

    ttl_seconds: float
    key: tuple[str, ...] = ()
    scope: SharingScope = SharingScope.TENANT


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """What applies to one tool.

    Results of up to ``max_tokens`` are delivered whole (None: any size); the preview of a larger one takes at most
    ``preview_tokens``. ``fields`` are the paths that a projection keeps (``items[*].name``), ``keywords`` the words
    that an extract looks for. ``references`` allows by-reference arguments. ``shared`` lets others of the tenant
    read stored results by handle. ``rates`` limit how often the tool may be called.
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
    """Policies by tool name or by a pattern such as ``github_*``."""

    default: ToolPolicy = ToolPolicy()
    by_name: Mapping[str, ToolPolicy] = field(default_factory=dict)

    def of(self, tool: str) -> ToolPolicy:
        """The policy of the exact name, else of the first matching pattern, else the default."""
        if (exact := self.by_name.get(tool)) is not None:
            return exact
        for pattern, policy in self.by_name.items():
            if fnmatchcase(tool, pattern):
                return policy
        return self.default
