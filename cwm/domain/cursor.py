"""Signed cursors: where to continue reading a stored result.

A cursor is bound to the reader (tenant and subject) and to what is read: the tool and arguments that produced the
result, the content of the part, and the query, if any. Clients cannot forge one or use it elsewhere. It encodes 90
bytes: version, key, part, offset, end, handle, reader, snapshot, signature.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from struct import Struct
from typing import Final

from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.domain.results import HANDLE_BYTES, StoredPart, StoredResult, handle_of, number_of

CURSOR_CHARS: Final = 120

_VERSION: Final = 1
_BINDING_BYTES: Final = 12
_SIGNATURE_BYTES: Final = 32
_PAYLOAD: Final = Struct(f">BBIQI{HANDLE_BYTES}s{_BINDING_BYTES}s{_BINDING_BYTES}s")
_KEY_LABEL: Final = b"cwm cursor 1"


class CursorFault(StrEnum):
    """Why a cursor is refused. Every problem with a signature is reported as ``malformed``, without detail."""

    MALFORMED = "malformed"
    EXPIRED = "expired"
    FOREIGN = "foreign"


_SENTENCES: Final = {
    CursorFault.MALFORMED: "This cursor was not issued by this gateway.",
    CursorFault.EXPIRED: "This cursor has expired; continue by handle and page.",
    CursorFault.FOREIGN: "This cursor was issued to another reader, or for another result or query.",
}


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a stored result: ``offset`` counts bytes of a part, or of a query's answer."""

    handle: str
    part: int
    offset: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a verified cursor. It is valid only for the snapshot that it was made for."""

    position: Position
    snapshot: bytes

    def require(self, snapshot: bytes) -> Position:
        """The position to continue at. CWM-1003 when the cursor was made for another snapshot."""
        if not hmac.compare_digest(self.snapshot, snapshot):
            raise refusal(CursorFault.FOREIGN)
        return self.position


class Cursors:
    """Makes and verifies cursors.

    The first secret signs and all of them verify, so that a secret can be rotated.
    """

    def __init__(self, secrets: Sequence[bytes]) -> None:
        keys = [hmac.digest(secret, _KEY_LABEL, "sha256") for secret in secrets]
        self._keys = [(hashlib.sha256(key).digest()[0], key) for key in keys]

    def make(self, position: Position, reader: Principal, snapshot: bytes, expires_at: datetime) -> str:
        number = number_of(position.handle)
        if number is None:
            raise ValueError("not a handle")
        key_id, key = self._keys[0]
        payload = _PAYLOAD.pack(
            _VERSION,
            key_id,
            position.part,
            position.offset,
            int(expires_at.timestamp()),
            number,
            _reader(reader),
            snapshot,
        )
        return urlsafe_b64encode(payload + hmac.digest(key, payload, "sha256")).decode()

    def read(self, cursor: str, reader: Principal, now: datetime) -> Claim:
        """Verify ``cursor`` and return its content. CWM-1003, with the fault as ``reason``."""
        payload = self._verified(cursor)
        version, _, part, offset, expires_at, number, read_by, snapshot = _PAYLOAD.unpack(payload)
        if version != _VERSION:
            raise refusal(CursorFault.MALFORMED)
        if not hmac.compare_digest(read_by, _reader(reader)):
            raise refusal(CursorFault.FOREIGN)
        if now.timestamp() >= expires_at:
            raise refusal(CursorFault.EXPIRED)
        return Claim(Position(handle_of(number), part, offset), snapshot)

    def _verified(self, cursor: str) -> bytes:
        raw = _decoded(cursor)
        payload, signature = raw[:-_SIGNATURE_BYTES], raw[-_SIGNATURE_BYTES:]
        for key_id, key in self._keys:
            if key_id == payload[1] and hmac.compare_digest(hmac.digest(key, payload, "sha256"), signature):
                return payload
        raise refusal(CursorFault.MALFORMED)


def snapshot_of(result: StoredResult, part: StoredPart, query: str = "") -> bytes:
    """What a cursor into a part is bound to: the part's content, the call that produced it, and the query."""
    return _binding(result.tool, result.arguments_digest, part.digest, query)


def refusal(fault: CursorFault) -> InvalidParameterError:
    return InvalidParameterError(_SENTENCES[fault], field="cursor", reason=fault.value)


def _decoded(cursor: str) -> bytes:
    """Only the canonical encoding is accepted: base64 has several spellings of the same bytes."""
    if len(cursor) == CURSOR_CHARS and cursor.isascii():
        try:
            raw = urlsafe_b64decode(cursor)
        except ValueError:
            raw = b""
        if urlsafe_b64encode(raw) == cursor.encode():
            return raw
    raise refusal(CursorFault.MALFORMED)


def _reader(principal: Principal) -> bytes:
    return _binding(principal.tenant, principal.subject)


def _binding(*values: str) -> bytes:
    """A short hash of ``values``; each is hashed with its length, so that different lists never collide by joining."""
    sha = hashlib.sha256()
    for value in values:
        encoded = value.encode("utf-8", "surrogatepass")
        sha.update(len(encoded).to_bytes(8) + encoded)
    return sha.digest()[:_BINDING_BYTES]
