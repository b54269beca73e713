"""How many refusals one process writes to the audit log, so that a flood of them neither fills it nor hides other attempts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

_WINDOW_SECONDS: Final = 60.0
_MOST: Final = 60
_MOST_OF_ONE: Final = 20
_MOST_TENANTS: Final = 1_000


@dataclass(slots=True)
class _Written:
    """The records of this minute for one tenant or for strangers. ``left_out``: refusals since the last record."""

    count: int = 0
    by: Counter[str | None] = field(default_factory=Counter)
    left_out: int = 0


@dataclass(slots=True)
class RecordQuota:
    """At most 60 records a minute for each tenant and 60 for strangers, and of these at most 20 for one subject or address."""

    _began: float = 0.0
    _written: dict[str | None, _Written] = field(default_factory=dict)

    def take(self, tenant: str | None, source: str | None, now: float) -> bool:
        """Count a refusal, ``now`` in monotonic seconds; whether it is to be recorded."""
        written = self._of(tenant, now)
        if written.count >= _MOST or written.by[source] >= _MOST_OF_ONE:
            written.left_out += 1
            return False
        written.count += 1
        written.by[source] += 1
        return True

    def left_out(self, tenant: str | None) -> int:
        """How many were not recorded since the last one that was."""
        written = self._written.get(tenant)
        return 0 if written is None else written.left_out

    def told(self, tenant: str | None) -> None:
        """The record with the number of those left out is written."""
        if (written := self._written.get(tenant)) is not None:
            written.left_out = 0

    def _of(self, tenant: str | None, now: float) -> _Written:
        if now - self._began >= _WINDOW_SECONDS:
            self._began = now
            gaps = {whose: each.left_out for whose, each in self._written.items() if each.left_out}
            self._written = {whose: _Written(left_out=left_out) for whose, left_out in gaps.items()}
        if tenant not in self._written and len(self._written) >= _MOST_TENANTS:
            del self._written[next(iter(self._written))]
        return self._written.setdefault(tenant, _Written())
