"""Notices when an upstream changes what a tool is, or its instructions, after they were seen first."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.errors import CwmError
from cwm.domain.upstream import Definition, UpstreamSpec
from cwm.domain.upstream_tools import SeenTool, ToolVersion, version_of, version_of_instructions
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.ports.meter import Meter
from cwm.ports.upstream import UpstreamAwayError
from cwm.ports.upstream_tools import UpstreamTools

_READ_AGAIN_SECONDS: Final = 5.0
_TELL_AGAIN_SECONDS: Final = 60.0
_MOST_NAMES: Final = 20

_log = logging.getLogger("cwm.upstream")


@dataclass(frozen=True, slots=True)
class Versions:
    """What an upstream offers now: tools by its own names, and instructions."""

    tools: Mapping[str, ToolVersion] = field(default_factory=dict)
    instructions: ToolVersion | None = None


@dataclass(slots=True)
class ToolWatch:
    """``tenant``: whose audit log has the changes."""

    tools: UpstreamTools
    audit: AuditLog
    meter: Meter
    clock: Clock
    tenant: str
    _unaccepted: dict[str, dict[tuple[str, str], datetime]] = field(default_factory=dict)
    _keys: dict[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    _read_at: dict[str, float] = field(default_factory=dict)
    _told_at: dict[str, float] = field(default_factory=dict)

    async def note(
        self, spec: UpstreamSpec, definitions: Sequence[Definition], instructions: str | None
    ) -> Versions:
        """Compare what an upstream lists with what it listed before.

        If that cannot be done, an upstream whose tools are pinned counts as away: raises UpstreamAwayError.
        """
        # Of two with the same name the first wins, as among offers.
        tools = {str(each["name"]): version_of(each) for each in reversed(definitions)}
        current_instructions = version_of_instructions(instructions)
        versions = Versions(tools, current_instructions)
        unique_versions = {version.key: version for version in (*tools.values(), current_instructions)}
        keys = frozenset(unique_versions)
        if self._keys.get(spec.name) == keys:
            await self.refresh(spec.name)
            return versions
        try:
            known_tools, new = await self.tools.note(
                spec.name, list(unique_versions.values()), self.clock.now()
            )
        except CwmError as error:
            _log.warning("the tools of upstream %s could not be compared: %s", spec.name, error.message)
            if spec.pin_tools:
                raise UpstreamAwayError("its tools are pinned, and what they were cannot be read") from error
            return versions
        self._keys[spec.name] = keys
        self._remember(spec.name, known_tools)
        if new:
            await self._tell(spec, known_tools, new)
        return versions

    async def refresh(self, upstream: str) -> None:
        """Read what was accepted meanwhile, at most every 5 s, while something waits for that."""
        if not self._unaccepted.get(upstream):
            return
        if self.clock.monotonic() - self._read_at[upstream] < _READ_AGAIN_SECONDS:
            return
        with suppress(CwmError):
            self._remember(upstream, await self.tools.listed(upstream))

    def unaccepted(self, upstream: str, versions: Versions) -> Mapping[str, datetime]:
        """The tools, by the upstream's own names, whose version is not accepted, and since when it is offered."""
        waiting = self._unaccepted.get(upstream)
        if not waiting:
            return {}
        return {name: waiting[each.key] for name, each in versions.tools.items() if each.key in waiting}

    def unaccepted_instructions(self, upstream: str, versions: Versions) -> datetime | None:
        """Since when the upstream has instructions that are not accepted; None if they are."""
        waiting = self._unaccepted.get(upstream)
        return waiting.get(versions.instructions.key) if waiting and versions.instructions else None

    def _remember(self, upstream: str, known_tools: Sequence[SeenTool]) -> None:
        self._read_at[upstream] = self.clock.monotonic()
        self._unaccepted[upstream] = {
            each.version.key: each.seen_at for each in known_tools if each.accepted_at is None
        }

    async def _tell(
        self, spec: UpstreamSpec, known_tools: Sequence[SeenTool], new: Sequence[ToolVersion]
    ) -> None:
        """Count each new version; log and record them, once a minute for one upstream."""
        for _ in new:
            self.meter.event("upstream_tool_changed")
        now = self.clock.monotonic()
        if now - self._told_at.get(spec.name, -_TELL_AGAIN_SECONDS) < _TELL_AGAIN_SECONDS:
            return
        self._told_at[spec.name] = now
        keys = {version.key for version in new}
        before = {each.version.tool for each in known_tools if each.version.key not in keys}
        changed_names = sorted({version.tool for version in new} & before)
        added_names = sorted({version.tool for version in new} - before)
        _log.warning(
            "upstream %s offers other tools than before: changed %s, added %s%s",
            *(spec.name, changed_names[:_MOST_NAMES], added_names[:_MOST_NAMES]),
            "; hidden until they are accepted" if spec.pin_tools else "",
        )
        with suppress(CwmError):
            await self.audit.record(
                AuditEvent(
                    self.clock.now(),
                    self.tenant,
                    f"upstream:{spec.name}",
                    "upstream.tools_changed",
                    "hidden" if spec.pin_tools else "offered",
                    severity=Severity.WARNING,
                    details={
                        "upstream": spec.name,
                        "changed": changed_names[:_MOST_NAMES],
                        "added": added_names[:_MOST_NAMES],
                        "count": len(new),
                    },
                )
            )
