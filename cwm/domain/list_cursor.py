"""Cursors for lists of windows, as text that an agent sends back to get the next page.

A cursor holds the sort value and the name of the last window seen. It is bound to the tenant and the query and
refused for any other. It is not signed: the query is limited to the caller's tenant anyway, and a forged position
shows nothing that an offset would not.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any, Final

from cwm.domain.cursor import CursorFault, refusal
from cwm.domain.errors import InvalidWindowNameError
from cwm.domain.names import require_window_name
from cwm.domain.window import WindowMark, WindowQuery, WindowSort

_VERSION: Final = 1
_MOST_CHARS: Final = 600
_BINDING_CHARS: Final = 16
_LARGEST: Final = {WindowSort.TOKEN_COUNT: 2**31 - 1, WindowSort.SIZE: 2**63 - 1}


def cursor_of(tenant: str, query: WindowQuery, mark: WindowMark) -> str:
    value = mark.value.astimezone(UTC).isoformat() if isinstance(mark.value, datetime) else mark.value
    payload = json.dumps([_VERSION, _binding(tenant, query), value, mark.name], separators=(",", ":"))
    return urlsafe_b64encode(payload.encode()).decode()


def mark_of(cursor: str, tenant: str, query: WindowQuery) -> WindowMark:
    """The position that ``cursor`` names. CWM-1003, with the fault as ``reason``."""
    version, binding, value, name = _decoded(cursor)
    if version != _VERSION:
        raise refusal(CursorFault.MALFORMED)
    if binding != _binding(tenant, query):
        raise refusal(CursorFault.FOREIGN)
    try:
        return WindowMark(_value(query.sort_by, value), require_window_name(name))
    except (ValueError, TypeError, OverflowError, InvalidWindowNameError):
        raise refusal(CursorFault.MALFORMED) from None


def _decoded(cursor: str) -> list[Any]:
    if len(cursor) <= _MOST_CHARS and cursor.isascii():
        try:
            document = json.loads(urlsafe_b64decode(cursor))
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, list) and len(document) == 4:
            return document
    raise refusal(CursorFault.MALFORMED)


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


def _binding(tenant: str, query: WindowQuery) -> str:
    """A hash of everything that decides which windows come in which order; the page length may differ."""
    bounds = [bound and bound.isoformat() for bound in (query.created_after, query.created_before)]
    facts = [
        tenant,
        list(query.tags),
        query.model,
        *bounds,
        query.search,
        query.sort_by.value,
        query.descending,
    ]
    material = json.dumps(facts).encode()
    return hashlib.sha256(material).hexdigest()[:_BINDING_CHARS]
