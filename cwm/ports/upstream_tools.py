"""Storage of the tools that upstreams were seen to offer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from cwm.domain.upstream_tools import SeenTool, ToolVersion


class UpstreamTools(Protocol):
    async def note(
        self, upstream: str, versions: Sequence[ToolVersion], at: datetime
    ) -> tuple[list[SeenTool], list[ToolVersion]]:
        """Record what an upstream offers now; returns all its versions on record, and those that are new. CWM-4001.

        What the first list of an upstream has is accepted, and is not returned as new; so are its first instructions, and
        that it has none.
        """
        ...

    async def listed(self, upstream: str | None = None) -> list[SeenTool]:
        """All versions on record, of one upstream or of all. CWM-4002."""
        ...

    async def accept(self, upstream: str, tools: Sequence[str], at: datetime) -> list[SeenTool]:
        """Accept all versions of these tools, or of all tools if none is named; returns those accepted now. CWM-4001."""
        ...
