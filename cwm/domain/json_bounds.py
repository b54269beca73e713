"""A bound on the values of JSON, by a linear look at its bytes: a parser makes objects of each, and cannot be interrupted.

Eight megabytes of empty lists take a parser half a second and 170 MB, and whoever walks them afterwards several times as much.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import detect_encoding
from typing import Final

from cwm.domain.errors import InvalidParameterError

MOST_VALUES: Final = 1_000_000
UNSCANNED_BYTES: Final = 64 * 1024
"""What is no longer than this needs no bound."""

# A list, an object or a named field costs a parser and its readers as much as so many numbers.
_WEIGHT: Final = 8
_PIECE_BYTES: Final = 64 * 1024
_COMMAS: Final = b","
_HEAVY: Final = b"[{:"
_UNREAD: Final = bytes(each for each in range(256) if each not in b'",[{:')
_TEXT: Final = re.compile(rb'"[^"]*"')
_UTF_8: Final = ("utf-8", "utf-8-sig")


def require_bounded(body: bytes, most: int = MOST_VALUES) -> None:
    """CWM-1003 for JSON of more values than ``most``: each number or text of a list is one, each list, object and named field eight.

    Reads no more of the body than that takes. What is no JSON is not noticed.
    """
    if len(body) <= UNSCANNED_BYTES or _is_within(most, _pieces(body)):
        return
    # Bytes of texts count above, too. In other encodings a byte does not say what it is part of.
    if detect_encoding(body) in _UTF_8 and _is_within(most, _without_texts(body)):
        return
    raise InvalidParameterError(
        f"The request body has more than {most} values. Each number or text in a list counts as one, each list, object and "
        f"named field as {_WEIGHT}.",
        field="body",
        limit=most,
        setting="CWM_MAX_BODY_VALUES",
    )


def _is_within(most: int, pieces: Iterator[bytes]) -> bool:
    values = 0
    for piece in pieces:
        values += _count(piece, _COMMAS) + _WEIGHT * _count(piece, _HEAVY)
        if values > most:
            return False
    return True


def _count(text: bytes, of: bytes) -> int:
    return len(text) - len(text.translate(None, of))


def _pieces(body: bytes) -> Iterator[bytes]:
    return (body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES))


def _without_texts(body: bytes) -> Iterator[bytes]:
    """The pieces of a body without what is inside of texts."""
    rest, is_open = b"", False
    for each in _pieces(body):
        piece = rest + each
        # What a last backslash escapes is in the next piece.
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        rest = b"\\" * (backslashes % 2)
        piece = piece[: len(piece) - len(rest)]
        marks = piece.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _UNREAD)
        outside, quote, _ = _TEXT.sub(b"", b'"' + marks if is_open else marks).partition(b'"')
        is_open = bool(quote)
        yield outside
