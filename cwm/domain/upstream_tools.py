"""Versions of the tools and the instructions of upstreams, by digest, so that a change does not pass unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cwm.domain.names import is_storable
from cwm.domain.upstream import Definition

_TOLD_TO_MODELS: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
INSTRUCTIONS: Final = "@instructions"
"""Stands for an upstream's instructions among its tools on record; no tool has this name there."""

_LONGEST_NAME: Final = 128
_LONGEST_DESCRIPTION: Final = 500


@dataclass(frozen=True, slots=True)
class ToolVersion:
    """A tool as an upstream defines it now, or its instructions; without a digest it has none."""

    tool: str
    digest: str
    description: str

    @property
    def key(self) -> tuple[str, str]:
        return self.tool, self.digest

    @property
    def is_instructions(self) -> bool:
        return self.tool == INSTRUCTIONS


@dataclass(frozen=True, slots=True)
class SeenTool:
    """A version of a tool on record. ``accepted_at`` is None for one that came after the first list, until it is accepted."""

    upstream: str
    version: ToolVersion
    seen_at: datetime
    offered_at: datetime
    accepted_at: datetime | None


def version_of(definition: Definition) -> ToolVersion:
    """The version of a tool: the digest covers everything that a model learns of it."""
    definition_fields = {
        field: definition[field] for field in _TOLD_TO_MODELS if definition.get(field) is not None
    }
    digest = hashlib.sha256(json.dumps(definition_fields, sort_keys=True).encode()).hexdigest()
    description = _storable(str(definition.get("description") or ""))
    return ToolVersion(_name(str(definition["name"])), digest, description[:_LONGEST_DESCRIPTION])


def version_of_instructions(text: str | None) -> ToolVersion:
    digest = hashlib.sha256(json.dumps(text).encode()).hexdigest() if text else ""
    return ToolVersion(INSTRUCTIONS, digest, _storable(text or "")[:_LONGEST_DESCRIPTION])


def newest(tools: Iterable[SeenTool]) -> list[SeenTool]:
    """The version of each tool that was offered last, by upstream and name."""
    latest: dict[tuple[str, str], SeenTool] = {}
    for each in tools:
        key = each.upstream, each.version.tool
        if key not in latest or each.offered_at > latest[key].offered_at:
            latest[key] = each
    return [latest[key] for key in sorted(latest)]


def _name(name: str) -> str:
    """The name on record: whatever an upstream calls a tool, it can be stored, and differs from every other."""
    if is_storable(name) and len(name) <= _LONGEST_NAME and name != INSTRUCTIONS:
        return name
    digest = hashlib.sha256(json.dumps(name).encode()).hexdigest()
    return f"{_storable(name)[: _LONGEST_NAME // 2]}…{digest[:32]}"


def _storable(text: str) -> str:
    return text if is_storable(text) else json.dumps(text)[1:-1]
