"""The chain of a tenant's audit records: each carries the digest of the one before and its own.

A digest is an HMAC under a key derived from the gateway's secret, over everything in the record. Whoever
has the database alone can neither write a record nor change, move or remove one without it showing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from cwm.domain.audit import AuditEvent
from cwm.domain.canonical import canonical_json

_KEY_LABEL: Final = b"cwm audit 1"
_KEY_ID_CHARS: Final = 12
_CARRIED_KEY: Final = b"cwm audit: carried over from before there was a chain"
CARRIED: Final = "carried"
"""Key id of records older than the chain: their key is no secret, the first record after them vouches for all."""


@dataclass(frozen=True, slots=True)
class Place:
    """A record's number in its tenant's chain, from 1, and its digest; number 0 is before the first."""

    seq: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An event in its place. ``previous`` is the digest of the record before; digests are in hex."""

    seq: int
    event: AuditEvent
    previous: str
    key_id: str
    digest: str

    @property
    def place(self) -> Place:
        return Place(self.seq, self.digest)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a tenant's chain had come at a time: a chain that ends before it was cut off."""

    tenant: str
    place: Place
    at: datetime
    key_id: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a tenant's chain begins. Records up to ``pruned`` had their time and are gone.

    Those up to the number ``carried_through`` are older than the chain.
    """

    tenant: str
    pruned: Place = Place()
    carried_through: int = 0
    key_id: str = ""
    signature: str = ""


class ChainKeys:
    """Links records and checks them. The first secret signs, all of them verify: so a secret can be replaced."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        keys = [hmac.digest(secret, _KEY_LABEL, "sha256") for secret in secrets]
        self._keys = {hashlib.sha256(key).hexdigest()[:_KEY_ID_CHARS]: key for key in keys}
        self._current = next(iter(self._keys))
        self._keys[CARRIED] = _CARRIED_KEY

    def link(self, event: AuditEvent, after: Place) -> AuditRecord:
        """The record that comes ``after``; its event is as every database can hold it."""
        return _linked(event, after, self._current, self._keys[self._current])

    def known(self, key_id: str) -> bool:
        return key_id in self._keys

    def holds(self, record: AuditRecord) -> bool:
        """Whether the record is as it was written, under a key that is :meth:`known`."""
        told = _told(record.seq, record.event, record.previous, record.key_id)
        return hmac.compare_digest(_digest(self._keys[record.key_id], told), record.digest)

    def sign_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        signed = replace(checkpoint, key_id=self._current)
        return replace(signed, signature=_digest(self._keys[self._current], _told_checkpoint(signed)))

    def signed_checkpoint(self, checkpoint: Checkpoint) -> bool:
        return self._signed(checkpoint.key_id, checkpoint.signature, _told_checkpoint(checkpoint))

    def sign_anchor(self, anchor: Anchor) -> Anchor:
        signed = replace(anchor, key_id=self._current)
        return replace(signed, signature=_digest(self._keys[self._current], _told_anchor(signed)))

    def signed_anchor(self, anchor: Anchor) -> bool:
        """Also for one before which nothing was pruned: there is nothing to sign."""
        told = (_told_anchor(anchor), _told_older_anchor(anchor))
        return anchor.pruned.seq == 0 or any(
            self._signed(anchor.key_id, anchor.signature, one) for one in told
        )

    def _signed(self, key_id: str, signature: str, told: bytes) -> bool:
        if key_id == CARRIED or key_id not in self._keys:
            return False
        return hmac.compare_digest(_digest(self._keys[key_id], told), signature)


def carried(event: AuditEvent, after: Place) -> AuditRecord:
    """The record of an event from before there was a chain, to come ``after``."""
    return _linked(event, after, CARRIED, _CARRIED_KEY)


def _linked(event: AuditEvent, after: Place, key_id: str, key: bytes) -> AuditRecord:
    kept, seq = _storable(event), after.seq + 1
    return AuditRecord(seq, kept, after.digest, key_id, _digest(key, _told(seq, kept, after.digest, key_id)))


def _digest(key: bytes, told: bytes) -> str:
    return hmac.digest(key, told, "sha256").hex()


def _told(seq: int, event: AuditEvent, previous: str, key_id: str) -> bytes:
    """All of a record but its digest, in one spelling."""
    origin = event.origin
    return canonical_json(
        [
            "record",
            event.tenant,
            seq,
            previous,
            key_id,
            _moment(event.timestamp),
            event.subject,
            event.event,
            event.outcome,
            event.session_id,
            event.window_name,
            event.severity,
            event.details,
            origin.face,
            origin.address,
            origin.user_agent,
        ]
    )


def _told_checkpoint(checkpoint: Checkpoint) -> bytes:
    place = checkpoint.place
    at = _moment(checkpoint.at)
    return canonical_json(["checkpoint", checkpoint.tenant, place.seq, place.digest, at, checkpoint.key_id])


def _told_anchor(anchor: Anchor) -> bytes:
    pruned, through = anchor.pruned, anchor.carried_through
    return canonical_json(["anchor 2", anchor.tenant, pruned.seq, pruned.digest, through, anchor.key_id])


def _told_older_anchor(anchor: Anchor) -> bytes:
    """As it was signed before that covered ``carried_through``; the next one that is signed takes its place."""
    pruned = anchor.pruned
    return canonical_json(["anchor", anchor.tenant, pruned.seq, pruned.digest, anchor.key_id])


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def _storable(event: AuditEvent) -> AuditEvent:
    """As it will be read back: details as JSON knows them, and no character that a database refuses."""
    spelled = json.dumps(event.details, ensure_ascii=False, default=str, skipkeys=True)
    details: dict[str, Any] = json.loads(spelled.encode("utf-8", "replace"), parse_constant=str)
    return replace(
        event,
        tenant=_text(event.tenant),
        subject=_text(event.subject),
        event=_text(event.event),
        outcome=_text(event.outcome),
        session_id=None if event.session_id is None else _text(event.session_id),
        window_name=None if event.window_name is None else _text(event.window_name),
        details=details,
    )


def _text(value: str) -> str:
    if value.isascii() and "\x00" not in value:
        return value
    return value.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
