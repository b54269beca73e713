"""Signed cursors for lists of windows and sessions, as text that an agent sends back to get the next page.

A cursor holds the sort value and the name of the last window seen, or the creation time and id of the last session. It is bound to the reader (tenant and subject) and
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
from cwm.domain.session import SessionMark, SessionQuery
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

    def require_sessions(self, query: SessionQuery) -> SessionMark:
        """The position to continue a list of sessions at. CWM-1003 when the cursor was made for another query."""
        if not hmac.compare_digest(self.binding, _binding(query)):
            raise refusal(CursorFault.FOREIGN)
        value, session_id = json.loads(self.mark)
        return SessionMark(_time(value), session_id)


class ListCursors:
    """Makes and verifies cursors of lists."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._keys = CursorKeys(secrets)

    def make(
        self,
        mark: WindowMark | SessionMark,
        reader: Principal,
        query: WindowQuery | SessionQuery,
        expires_at: datetime,
    ) -> str:
        """The cursor that continues ``query`` after ``mark``, for this reader, until ``expires_at``."""
        value, name = (mark.created_at, mark.id) if isinstance(mark, SessionMark) else (mark.value, mark.name)
        if isinstance(value, datetime):
            value = value.astimezone(UTC).isoformat()
        head = _HEAD.pack(int(expires_at.timestamp()), reader_of(reader), _binding(query))
        document = json.dumps([value, name], separators=(",", ":"))
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
            return _time(value)
        case _:
            if type(value) is not int or not 0 <= value <= _LARGEST[sort_by]:
                raise ValueError("no such count")
            return value


def _time(value: str) -> datetime:
    return datetime.fromisoformat(value).astimezone(UTC)


def _binding(query: WindowQuery | SessionQuery) -> bytes:
    """A hash of everything that decides what comes in which order; the page length may differ."""
    facts = (
        _facts(query)
        if isinstance(query, WindowQuery)
        else ["sessions", sorted(query.states or ()), query.called]
    )
    circles = None if query.circles is None else sorted(query.circles)
    material = json.dumps([*facts, circles]).encode()
    return hashlib.sha256(material).digest()[:_BINDING_BYTES]


def _facts(query: WindowQuery) -> list[Any]:
    bounds = [bound and bound.isoformat() for bound in (query.created_after, query.created_before)]
    return [
        list(query.tags),
        query.model,
        *bounds,
        query.search,
        query.sort_by.value,
        query.descending,
    ]
