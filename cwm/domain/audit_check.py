"""Checks whether a tenant's audit chain is intact, and if not, which records break it and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cwm.domain.audit_chain import CARRIED, Anchor, AuditRecord, ChainKeys, Checkpoint, Place

MOST_FINDINGS: Final = 1_000
"""Findings beyond this number are counted but not listed."""


class Damage(StrEnum):
    CHANGED = "changed"
    """The content of a record, or its position, differs from what was signed."""
    REMOVED = "removed"
    """Records are missing between others, or before the first."""
    UNLINKED = "unlinked"
    """A record is unchanged but does not follow the record that it was written after."""
    REPEATED = "repeated"
    """A number occurs twice, or a pruned record has come back."""
    CUT_OFF = "cut_off"
    """The chain ends before a recorded checkpoint, or has another record at its place."""
    UNKNOWN_KEY = "unknown_key"
    """A record was signed with a secret that is not among the configured ones."""
    UNSIGNED = "unsigned"
    """The anchor, the checkpoint or the records older than the chain were not signed by anybody who has the secret."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Damage at the records ``first`` to ``last``."""

    damage: Damage
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    ``carried`` of the ``records`` are older than the chain; ``end`` is the place of the last record.
    ``unsigned_carried`` is the finding about those that nobody has signed.
    """

    tenant: str
    records: int
    carried: int
    pruned: int
    end: Place
    findings: Sequence[Finding]
    more_findings: int
    unsigned_carried: Finding | None = None

    @property
    def whole(self) -> bool:
        return not self.findings


@dataclass(slots=True)
class ChainCheck:
    """Checks a tenant's records, which the caller feeds in the order of their numbers.

    Each of ``checkpoints`` is a place that the chain once reached; the caller has already verified their
    signatures.
    """

    keys: ChainKeys
    anchor: Anchor
    checkpoints: Sequence[Checkpoint] = ()
    carried_through: int = field(init=False)
    """Highest number that a record older than the chain may have: the anchor's, or that before the first other record."""
    _last: Place = field(init=False)
    _records: int = field(default=0, init=False)
    _carried: int = field(default=0, init=False)
    _carried_signed: bool = field(init=False)
    _unsigned_carried: Finding | None = field(default=None, init=False)
    _findings: list[Finding] = field(default_factory=list, init=False)
    _more_findings: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._last = self.anchor.pruned
        self.carried_through = self.anchor.carried_through
        self._carried_signed = self.keys.signed(self.anchor)
        if not self.keys.signed_anchor(self.anchor):
            # One finding for the anchor is enough.
            self._carried_signed = True
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
    def is_whole(self) -> bool:
        """Whether no damage was found so far."""
        return not self._all_findings()

    def verdict(self) -> Verdict:
        furthest = max((point.place.seq for point in self.checkpoints), default=0)
        if self._records == 0 and self.anchor.pruned.seq:
            # Pruning keeps the newest record, however old it is.
            furthest = max(furthest, self.anchor.pruned.seq + 1)
        if furthest > self._last.seq:
            self._find(Damage.CUT_OFF, self._last.seq + 1, furthest)
        return Verdict(
            self.anchor.tenant,
            self._records,
            self._carried,
            self.anchor.pruned.seq,
            self._last,
            self._all_findings(),
            self._more_findings,
            self._unsigned_carried,
        )

    def _look_at(self, record: AuditRecord, *, follows: bool) -> None:
        late = record.key_id == CARRIED and record.seq > self.carried_through
        if not self.keys.knows(record.key_id):
            self._find(Damage.UNKNOWN_KEY, record.seq, record.seq)
        elif late or not self.keys.holds(record):
            self._find(Damage.CHANGED, record.seq, record.seq)
            return
        elif follows and record.previous != self._last.digest:
            self._find(Damage.UNLINKED, record.seq, record.seq)
        if record.key_id != CARRIED:
            self.carried_through = min(self.carried_through, record.seq - 1)
        elif not self._carried_signed:
            first = record.seq if self._unsigned_carried is None else self._unsigned_carried.first
            self._unsigned_carried = Finding(Damage.UNSIGNED, first, record.seq)

    def _all_findings(self) -> tuple[Finding, ...]:
        if self._unsigned_carried is None:
            return tuple(self._findings)
        return (self._unsigned_carried, *self._findings)

    def _find(self, damage: Damage, first: int, last: int) -> None:
        if len(self._findings) < MOST_FINDINGS:
            self._findings.append(Finding(damage, first, last))
        else:
            self._more_findings += 1
