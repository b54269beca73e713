"""What of records changed last, found by indexes, however many records there are. CWM-4002."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from cwm.domain.marks import Touch, WindowMark


class MarkRecords(Protocol):
    async def touched_of_every_tenant(self, since: datetime) -> Mapping[str, Mapping[str, Touch]]:
        """The sessions that were used or changed from ``since`` on, by tenant and id: the newest 1,000."""

    async def window_mark(self, tenant: str) -> WindowMark: ...
