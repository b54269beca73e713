"""Signed cursors for lists of windows, as text that an agent sends back to get the next page.

A cursor holds the sort value and the name of the last window seen. It is bound to the reader (tenant and subject) and
to the query, and expires, as cursors into results do.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from struct import Struct
from typing import Any, Final

from cwm.domain.cursor import CursorFault, CursorKeys, reader_of, refusal, require_valid
from cwm.domain.errors import InvalidWindowNameError
from cwm.domain.names import require_window_name
from cwm.domain.principal import Principal
from cwm.domain.window import WindowMark, WindowQuery, WindowSort

_VERSION: Final = 2
_MOST_CHARS: Final = 800
_BINDING_BYTES: Final = 12
_HEAD: Final = Struct(f">I{_BINDING_BYTES}s{_BINDING_BYTES}s")
_LARGEST: Final = {WindowSort.TOKEN_COUNT: 2**31 - 1, WindowSort.SIZE: 2**63 - 1}


@dataclass(frozen=True, slots=True)
class ListClaim:
    """The content of a verified cursor. It is valid only for the query that it was made for."""

    binding: bytes
    mark: bytes

    def require(self, query: WindowQuery) -> WindowMark:
        """The position to continue at. CWM-1003 when the cursor was made for another query."""
        if not hmac.compare_digest(self.binding, _binding(query)):
            raise refusal(CursorFault.FOREIGN)
        try:
            value, name = json.loads(self.mark)
            return WindowMark(_value(query.sort_by, value), require_window_name(name))
        except (ValueError, TypeError, OverflowError, InvalidWindowNameError):
            raise refusal(CursorFault.MALFORMED) from None


class ListCursors:
    """Makes and verifies cursors of lists."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._keys = CursorKeys(secrets)

    def make(self, mark: WindowMark, reader: Principal, query: WindowQuery, expires_at: datetime) -> str:
        value = mark.value.astimezone(UTC).isoformat() if isinstance(mark.value, datetime) else mark.value
        head = _HEAD.pack(int(expires_at.timestamp()), reader_of(reader), _binding(query))
        document = json.dumps([value, mark.name], separators=(",", ":"))
        return self._keys.signed(_VERSION, head + document.encode())

    def read(self, cursor: str, reader: Principal, now: datetime) -> ListClaim:
        """Verify ``cursor`` and return its content. CWM-1003, with the fault as ``reason``."""
        content = self._keys.verified(_VERSION, cursor, _MOST_CHARS)
        expires_at, read_by, binding = _HEAD.unpack_from(content)
        require_valid(read_by, expires_at, reader, now)
        return ListClaim(binding, content[_HEAD.size :])


def _value(sort_by: WindowSort, value: Any) -> str | int | datetime:
    """The sort value. ValueError or TypeError when no window can have it."""
    match sort_by:
        case WindowSort.NAME:
            return require_window_name(value)
        case WindowSort.CREATED_AT:
            return datetime.fromisoformat(value).astimezone(UTC)
        case _:
            if type(value) is not int or not 0 <= value <= _LARGEST[sort_by]:
                raise ValueError("no such count")
            return value


def _binding(query: WindowQuery) -> bytes:
    """A hash of everything that decides which windows come in which order; the page length may differ."""
    bounds = [bound and bound.isoformat() for bound in (query.created_after, query.created_before)]
    facts = [
        list(query.tags),
        query.model,
        *bounds,
        query.search,
        query.sort_by.value,
        query.descending,
    ]
    material = json.dumps(facts).encode()
    return hashlib.sha256(material).digest()[:_BINDING_BYTES]
