"""Tool results as CWM stores them: in parts, byte for byte."""

from __future__ import annotations

import string
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

RESULTS_URI: Final = "cwm://results"
"""``<this>/<handle>`` is the resource of a whole stored result, ``<this>/<handle>/<index>`` that of one part."""

HANDLE_BYTES: Final = 16
ABOUT_TYPE: Final = "application/vnd.cwm.about+json"
"""Media type of the JSON part that stores a tool's metadata about its answer."""
PAGE_BYTES: Final = 8_000
"""Page length of a part of which nothing is known yet."""

_DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_PREFIX: Final = "r_"
_HANDLE_DIGITS: Final = 22

HANDLE_PATTERN: Final = f"^{_PREFIX}[0-9A-Za-z]{{{_HANDLE_DIGITS}}}$"


class PartKind(StrEnum):
    JSON = "json"
    """Structured content, or a text that is JSON; both are stored as UTF-8."""
    TEXT = "text"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class Part:
    """``body`` is what the tool returned: text as UTF-8, or decoded base64."""

    kind: PartKind
    media_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part without its body, which is stored under ``digest``; ``size`` in bytes.

    ``page_bytes`` is the approximate page length; storing it gives every reader the same pages.
    """

    kind: PartKind
    media_type: str
    digest: str
    size: int
    page_bytes: int = PAGE_BYTES


@dataclass(frozen=True, slots=True)
class StoredResult:
    """``owner`` is the subject that called ``tool``; when ``shared``, others of the tenant may read it too.

    ``arguments_digest`` distinguishes calls of the tool.
    """

    tenant: str
    handle: str
    owner: str
    tool: str
    parts: tuple[StoredPart, ...]
    created_at: datetime
    expires_at: datetime
    shared: bool = False
    arguments_digest: str = ""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def opens_for(self, subject: str) -> bool:
        """Whether ``subject``, who must belong to the result's tenant, may read it."""
        return self.shared or subject == self.owner


@dataclass(frozen=True, slots=True)
class ResultUse:
    """How many results somebody has, and what they take in bytes."""

    count: int
    size_bytes: int


def handle_of(number: bytes) -> str:
    """The handle that encodes 16 bytes, in letters and digits only."""
    rest = int.from_bytes(number)
    digits = []
    for _ in range(_HANDLE_DIGITS):
        rest, digit = divmod(rest, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return _PREFIX + "".join(reversed(digits))


def number_of(handle: str) -> bytes | None:
    """The 16 bytes that ``handle`` encodes; None when it is not a handle."""
    digits = handle.removeprefix(_PREFIX)
    if len(handle) != len(_PREFIX) + _HANDLE_DIGITS or len(digits) != _HANDLE_DIGITS:
        return None
    number = 0
    for digit in digits:
        value = _VALUES.get(digit)
        if value is None:
            return None
        number = number * len(_DIGITS) + value
    return number.to_bytes(HANDLE_BYTES) if number < 1 << (8 * HANDLE_BYTES) else None
