"""The hash chain of a tenant's audit records: each record carries its own digest and the previous record's.

A digest is an HMAC over the whole record, with a key derived from the gateway's secret. Somebody who can only write
to the database cannot add, change, move or remove a record without being detected.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from cwm.domain.audit import AuditEvent
from cwm.domain.canonical import canonical_json

_KEY_LABEL: Final = b"cwm audit 1"
_KEY_ID_CHARS: Final = 12
_CARRIED_KEY: Final = b"cwm audit: carried over from before there was a chain"
CARRIED: Final = "carried"
"""Key id of records older than the chain.

Their key is public: what vouches for them is the anchor, signed once with the digest of the last of them.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A record's number in its tenant's chain, from 1, and its digest. Number 0 is before the first record."""

    seq: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An event at its place in the chain. ``previous`` is the digest of the record before; digests are in hex."""

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
    """A signed statement of how far a tenant's chain had come at a time. A chain that ends earlier was cut off."""

    tenant: str
    place: Place
    at: datetime
    key_id: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a tenant's chain begins.

    Records up to ``pruned`` were removed when their retention ended. Records up to number ``carried_through`` are
    older than the chain; ``carried_digest`` is the digest of the last of them in the chain, empty if none is left.
    """

    tenant: str
    pruned: Place = Place()
    carried_through: int = 0
    carried_digest: str = ""
    key_id: str = ""
    signature: str = ""


S = TypeVar("S", Checkpoint, Anchor)


class ChainKeys:
    """Links and verifies records.

    The first secret signs and all of them verify, so that a secret can be rotated.
    """

    def __init__(self, secrets: Sequence[bytes]) -> None:
        keys = [hmac.digest(secret, _KEY_LABEL, "sha256") for secret in secrets]
        self._keys = {hashlib.sha256(key).hexdigest()[:_KEY_ID_CHARS]: key for key in keys}
        self._current = next(iter(self._keys))
        self._keys[CARRIED] = _CARRIED_KEY

    def link(self, event: AuditEvent, after: Place) -> AuditRecord:
        """The record for ``event`` that follows ``after``; its text is cleaned so that every database can store it."""
        return _linked(event, after, self._current, self._keys[self._current])

    def knows(self, key_id: str) -> bool:
        return key_id in self._keys

    def holds(self, record: AuditRecord) -> bool:
        """Whether the record is unchanged since it was written. The keys must know its key id (:meth:`knows`)."""
        material = _record_material(record.seq, record.event, record.previous, record.key_id)
        return hmac.compare_digest(_digest(self._keys[record.key_id], material), record.digest)

    def sign(self, statement: S) -> S:
        keyed = replace(statement, key_id=self._current)
        return replace(keyed, signature=_digest(self._keys[self._current], _material(keyed)))

    def signed(self, statement: Checkpoint | Anchor) -> bool:
        """Whether the signature is valid for the whole statement."""
        return self._signed(statement, _material(statement))

    def signed_anchor(self, anchor: Anchor) -> bool:
        """Whether the signature is valid for what was pruned. With nothing pruned none is needed."""
        materials = (_material(anchor), *_older_anchor_materials(anchor))
        return anchor.pruned.seq == 0 or any(self._signed(anchor, material) for material in materials)

    def _signed(self, statement: Checkpoint | Anchor, material: bytes) -> bool:
        key_id = statement.key_id
        if key_id == CARRIED or key_id not in self._keys:
            return False
        return hmac.compare_digest(_digest(self._keys[key_id], material), statement.signature)


def carried(event: AuditEvent, after: Place) -> AuditRecord:
    """The record, following ``after``, for an event that is older than the chain."""
    return _linked(event, after, CARRIED, _CARRIED_KEY)


def _linked(event: AuditEvent, after: Place, key_id: str, key: bytes) -> AuditRecord:
    stored_event, seq = _storable(event), after.seq + 1
    return AuditRecord(
        seq,
        stored_event,
        after.digest,
        key_id,
        _digest(key, _record_material(seq, stored_event, after.digest, key_id)),
    )


def _digest(key: bytes, material: bytes) -> str:
    return hmac.digest(key, material, "sha256").hex()


def _record_material(seq: int, event: AuditEvent, previous: str, key_id: str) -> bytes:
    """The bytes that a record's digest covers: every field except the digest, as canonical JSON."""
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


def _material(statement: Checkpoint | Anchor) -> bytes:
    """The bytes that a signature covers."""
    if isinstance(statement, Checkpoint):
        place, at = statement.place, _moment(statement.at)
        fields = ["checkpoint", statement.tenant, place.seq, place.digest, at]
    else:
        pruned, carried_place = statement.pruned, (statement.carried_through, statement.carried_digest)
        fields = ["anchor 3", statement.tenant, pruned.seq, pruned.digest, *carried_place]
    return canonical_json([*fields, statement.key_id])


def _older_anchor_materials(anchor: Anchor) -> tuple[bytes, bytes]:
    """The bytes that older signatures cover: without what is carried, or without its digest."""
    pruned, through = anchor.pruned, anchor.carried_through
    return (
        canonical_json(["anchor", anchor.tenant, pruned.seq, pruned.digest, anchor.key_id]),
        canonical_json(["anchor 2", anchor.tenant, pruned.seq, pruned.digest, through, anchor.key_id]),
    )


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def _storable(event: AuditEvent) -> AuditEvent:
    """The event as the database will return it: JSON values in the details, no characters that a database rejects."""
    details_json = json.dumps(event.details, ensure_ascii=False, default=str, skipkeys=True)
    details: dict[str, Any] = json.loads(details_json.encode("utf-8", "replace"), parse_constant=str)
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
