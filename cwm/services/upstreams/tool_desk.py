"""What the operator sees of the upstreams' tools, and accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cwm.domain.audit import AuditEvent
from cwm.domain.errors import InvalidParameterError
from cwm.domain.upstream_tools import SeenTool, newest
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.ports.upstream_tools import UpstreamTools

OPERATOR: Final = "operator"
_MOST_NAMES: Final = 20


@dataclass(frozen=True, slots=True)
class ToolDesk:
    """For the operator of a gateway. No scopes are checked: whoever can write the database needs none."""

    tools: UpstreamTools
    audit: AuditLog
    clock: Clock
    tenant: str

    async def listed(self, upstream: str | None = None) -> list[SeenTool]:
        """The version of each tool that was offered last. CWM-1003 if nothing is known of the upstream; CWM-4002."""
        tools = await self.tools.listed(upstream)
        if upstream is not None and not tools:
            raise InvalidParameterError(
                f"No gateway on this database has listed the tools of an upstream {upstream[:64]}.",
                field="upstream",
            )
        return [each for each in newest(tools) if each.version.digest]

    async def accept(self, upstream: str, tools: Sequence[str], by: str = OPERATOR) -> list[SeenTool]:
        """Accept what changed of these tools, or of all if none is named, in the name of ``by``; returns it. CWM-1003 as for ``listed``; CWM-4001."""
        names = {each.version.tool for each in await self.listed(upstream)}
        for tool in tools:
            if tool not in names:
                raise InvalidParameterError(
                    f"Upstream {upstream} was never seen to offer {tool[:64]}.", field="tool"
                )
        versions = await self.tools.accept(upstream, tools, self.clock.now())
        if versions:
            names_accepted = sorted({each.version.tool for each in versions})
            details = {
                "upstream": upstream,
                "tools": names_accepted[:_MOST_NAMES],
                "count": len(names_accepted),
            }
            await self.audit.record(
                AuditEvent(self.clock.now(), self.tenant, by, "upstream.accept", "success", details=details)
            )
        return versions
