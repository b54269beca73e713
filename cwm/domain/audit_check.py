"""Whether a tenant's chain is whole, and if not, which record breaks it and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cwm.domain.audit_chain import CARRIED, Anchor, AuditRecord, ChainKeys, Checkpoint, Place

MOST_FINDINGS: Final = 1_000
"""Further ones are counted, not told."""


class Damage(StrEnum):
    CHANGED = "changed"
    """A record is not as it was written, or not where it was written."""
    REMOVED = "removed"
    """Records are missing between others, or before the first."""
    UNLINKED = "unlinked"
    """A record is as it was written, but follows another one than it was written after."""
    REPEATED = "repeated"
    """A number is there twice, or a record has come back that was pruned."""
    CUT_OFF = "cut_off"
    """The chain ends before, or runs otherwise at, a place that it is known to have come to."""
    UNKNOWN_KEY = "unknown_key"
    """A record was written under a secret that is not among those given."""
    UNSIGNED = "unsigned"
    """Where the chain begins, or how far it had come, was not written by a gateway with the secret."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Damage at the records ``first`` to ``last``."""

    damage: Damage
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """``carried`` of the ``records`` are older than the chain; ``end`` is where it ends now."""

    tenant: str
    records: int
    carried: int
    pruned: int
    end: Place
    findings: Sequence[Finding]
    more_findings: int

    @property
    def whole(self) -> bool:
        return not self.findings


@dataclass(slots=True)
class ChainCheck:
    """Takes a tenant's records in the order of their numbers.

    Each of ``checkpoints`` is a place that the chain came to once; the caller has looked at their signatures.
    """

    keys: ChainKeys
    anchor: Anchor
    checkpoints: Sequence[Checkpoint] = ()
    _last: Place = field(init=False)
    _carried_through: int = field(init=False)
    _records: int = field(default=0, init=False)
    _carried: int = field(default=0, init=False)
    _found: list[Finding] = field(default_factory=list, init=False)
    _more: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._last = self.anchor.pruned
        self._carried_through = self.anchor.carried_through
        if not self.keys.signed_anchor(self.anchor):
            self._find(Damage.UNSIGNED, self._last.seq, self._last.seq)

    def take(self, record: AuditRecord) -> None:
        self._records += 1
        self._carried += record.key_id == CARRIED
        expected = self._last.seq + 1
        if record.seq < expected:
            self._find(Damage.REPEATED, record.seq, record.seq)
            return
        if record.seq > expected:
            self._find(Damage.REMOVED, expected, record.seq - 1)
        self._look_at(record, follows=record.seq == expected)
        if any(point.place.seq == record.seq and point.place != record.place for point in self.checkpoints):
            self._find(Damage.CUT_OFF, record.seq, record.seq)
        self._last = record.place

    @property
    def carried_through(self) -> int:
        """Up to where records older than the chain may be: as the anchor says, and none after one that is not."""
        return self._carried_through

    @property
    def is_whole(self) -> bool:
        """As far as it was taken."""
        return not self._found

    def verdict(self) -> Verdict:
        furthest = max((point.place.seq for point in self.checkpoints), default=0)
        if self._records == 0 and self.anchor.pruned.seq:
            # Pruning leaves the newest record, however old it is.
            furthest = max(furthest, self.anchor.pruned.seq + 1)
        if furthest > self._last.seq:
            self._find(Damage.CUT_OFF, self._last.seq + 1, furthest)
        return Verdict(
            self.anchor.tenant,
            self._records,
            self._carried,
            self.anchor.pruned.seq,
            self._last,
            tuple(self._found),
            self._more,
        )

    def _look_at(self, record: AuditRecord, *, follows: bool) -> None:
        late = record.key_id == CARRIED and record.seq > self._carried_through
        if not self.keys.known(record.key_id):
            self._find(Damage.UNKNOWN_KEY, record.seq, record.seq)
        elif late or not self.keys.holds(record):
            self._find(Damage.CHANGED, record.seq, record.seq)
            return
        elif follows and record.previous != self._last.digest:
            self._find(Damage.UNLINKED, record.seq, record.seq)
        if record.key_id != CARRIED:
            self._carried_through = min(self._carried_through, record.seq - 1)

    def _find(self, damage: Damage, first: int, last: int) -> None:
        if len(self._found) < MOST_FINDINGS:
            self._found.append(Finding(damage, first, last))
        else:
            self._more += 1
