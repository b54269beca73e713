"""Limits of single tools in words, as ``cwm.yaml`` has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cwm.domain.access import AccessScope
from cwm.domain.limits import Level, Rate
from cwm.domain.principal import Principal
from cwm.domain.tool_policy import ToolPolicies

_WHOSE: Final = {
    Level.SESSION: "in each session",
    Level.PRINCIPAL: "by you",
    Level.TENANT: "by the tenant",
}


@dataclass(frozen=True, slots=True)
class ToolRow:
    """Calls of a tool, or of those that a pattern names: whose, and how many; ``limits`` of a level are empty where it lifts the general one."""

    name: str
    limits: Sequence[tuple[str, Sequence[Rate]]]


def tool_rows(policies: ToolPolicies, principal: Principal) -> list[ToolRow]:
    """Tools with limits of their own, in the order in which they are listed; a tenant's are for who has the scope admin."""
    rows = [ToolRow(name, list(_limits(policies, name, principal))) for name in policies.by_name]
    return [row for row in rows if row.limits]


def _limits(policies: ToolPolicies, name: str, principal: Principal) -> Iterator[tuple[str, Sequence[Rate]]]:
    for level, whose in _WHOSE.items():
        rates = policies.by_name[name].rates.of(level)
        if rates is not None and (level is not Level.TENANT or AccessScope.ADMIN in principal.scopes):
            yield whose, rates
