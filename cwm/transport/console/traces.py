"""Where a trace is shown: the address of a tracing UI, from the id that a record has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cwm.domain.audit import TRACE_ID

_ID: Final = re.compile(r"[0-9a-f]{32}")
_PLACE: Final = "{trace_id}"


@dataclass(frozen=True, slots=True)
class TraceLinks:
    """``template``: an http(s) address with ``{trace_id}``; None where no tracing UI is configured."""

    template: str | None = None

    def to(self, trace_id: object) -> str | None:
        """The address of a trace; None without a UI, and for what is no id."""
        if self.template is None or not isinstance(trace_id, str) or not _ID.fullmatch(trace_id):
            return None
        return self.template.replace(_PLACE, trace_id)

    def of(self, details: Mapping[str, object]) -> str | None:
        """The address of the trace in which an event was recorded, from its details."""
        return self.to(details.get(TRACE_ID))


NOWHERE: Final = TraceLinks()
