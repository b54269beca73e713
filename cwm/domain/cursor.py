"""Signed cursors: where to continue reading a stored result, and what they share with those of lists.

A cursor into a result is bound to the reader (tenant and subject) and to what is read: the tool and arguments that produced the
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
_HEAD_BYTES: Final = 2
_PAYLOAD: Final = Struct(f">IQI{HANDLE_BYTES}s{_BINDING_BYTES}s{_BINDING_BYTES}s")
_KEY_LABEL: Final = b"cwm cursor 1"


class CursorFault(StrEnum):
    """Why a cursor is refused. Every problem with a signature is reported as ``malformed``, without detail."""

    MALFORMED = "malformed"
    EXPIRED = "expired"
    FOREIGN = "foreign"


_SENTENCES: Final = {
    CursorFault.MALFORMED: "This cursor was not issued by this gateway.",
    CursorFault.EXPIRED: "This cursor has expired; read on by handle and page, or list by offset.",
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


class CursorKeys:
    """Signs the content of cursors, of any kind: ``version`` tells the kinds apart.

    The first secret signs and all of them verify, so that a secret can be rotated.
    """

    def __init__(self, secrets: Sequence[bytes]) -> None:
        keys = [hmac.digest(secret, _KEY_LABEL, "sha256") for secret in secrets]
        self._keys = [(hashlib.sha256(key).digest()[0], key) for key in keys]

    def signed(self, version: int, content: bytes) -> str:
        key_id, key = self._keys[0]
        payload = bytes((version, key_id)) + content
        return urlsafe_b64encode(payload + hmac.digest(key, payload, "sha256")).decode()

    def verified(self, version: int, cursor: str, most_chars: int) -> bytes:
        """The content of ``cursor``. CWM-1003 if it was not signed here, or is of another kind."""
        raw = _decoded(cursor, most_chars)
        payload, signature = raw[:-_SIGNATURE_BYTES], raw[-_SIGNATURE_BYTES:]
        if len(payload) >= _HEAD_BYTES and payload[0] == version:
            for key_id, key in self._keys:
                if key_id == payload[1] and hmac.compare_digest(
                    hmac.digest(key, payload, "sha256"), signature
                ):
                    return payload[_HEAD_BYTES:]
        raise refusal(CursorFault.MALFORMED)


class Cursors:
    """Makes and verifies cursors into results."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._keys = CursorKeys(secrets)

    def make(self, position: Position, reader: Principal, snapshot: bytes, expires_at: datetime) -> str:
        number = number_of(position.handle)
        if number is None:
            raise ValueError("not a handle")
        content = _PAYLOAD.pack(
            position.part,
            position.offset,
            int(expires_at.timestamp()),
            number,
            reader_of(reader),
            snapshot,
        )
        return self._keys.signed(_VERSION, content)

    def read(self, cursor: str, reader: Principal, now: datetime) -> Claim:
        """Verify ``cursor`` and return its content. CWM-1003, with the fault as ``reason``."""
        content = self._keys.verified(_VERSION, cursor, CURSOR_CHARS)
        part, offset, expires_at, number, read_by, snapshot = _PAYLOAD.unpack(content)
        require_valid(read_by, expires_at, reader, now)
        return Claim(Position(handle_of(number), part, offset), snapshot)


def snapshot_of(result: StoredResult, part: StoredPart, query: str = "") -> bytes:
    """What a cursor into a part is bound to: the part's content, the call that produced it, and the query."""
    return _binding(result.tool, result.arguments_digest, part.digest, query)


def require_valid(read_by: bytes, expires_at: int, reader: Principal, now: datetime) -> None:
    """CWM-1003 for a cursor that was made for another reader, or has expired."""
    if not hmac.compare_digest(read_by, reader_of(reader)):
        raise refusal(CursorFault.FOREIGN)
    if now.timestamp() >= expires_at:
        raise refusal(CursorFault.EXPIRED)


def refusal(fault: CursorFault) -> InvalidParameterError:
    return InvalidParameterError(_SENTENCES[fault], field="cursor", reason=fault.value)


def _decoded(cursor: str, most_chars: int) -> bytes:
    """Only the canonical encoding is accepted: base64 has several spellings of the same bytes."""
    if len(cursor) <= most_chars and cursor.isascii():
        try:
            raw = urlsafe_b64decode(cursor)
        except ValueError:
            raw = b""
        if urlsafe_b64encode(raw) == cursor.encode():
            return raw
    raise refusal(CursorFault.MALFORMED)


def reader_of(principal: Principal) -> bytes:
    """A short hash of who may use a cursor."""
    return _binding(principal.tenant, principal.subject)


def _binding(*values: str) -> bytes:
    """A short hash of ``values``; each is hashed with its length, so that different lists never collide by joining."""
    sha = hashlib.sha256()
    for value in values:
        encoded = value.encode("utf-8", "surrogatepass")
        sha.update(len(encoded).to_bytes(8) + encoded)
    return sha.digest()[:_BINDING_BYTES]
