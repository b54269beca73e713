"""Secrets that stand in a file instead of a variable: ``<VARIABLE>_FILE`` names it, as container platforms mount them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

SUFFIX: Final = "_FILE"

_MOST_BYTES: Final = 64 * 1024


def secret_of(variable: str, environ: Mapping[str, str]) -> str | None:
    """The value of ``variable``, or what the file of ``<variable>_FILE`` holds; None where neither is set.

    Line ends after the value are no part of it. Raises ValueError, without the value, for both at once and for
    a file that cannot be read or is empty.
    """
    value, path = environ.get(variable, ""), environ.get(variable + SUFFIX, "")
    if not path:
        return value or None
    if value:
        raise ValueError(f"{variable} and {variable}{SUFFIX} are both set; set one of them")
    return _content(Path(path).expanduser(), f"{variable}{SUFFIX} names {path}, which")


def _content(path: Path, told: str) -> str:
    try:
        with path.open("rb") as opened:
            raw = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{told} cannot be read: {error.strerror}") from None
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"{told} has more than {_MOST_BYTES} bytes")
    try:
        value = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{told} is not UTF-8") from None
    if not value:
        raise ValueError(f"{told} is empty")
    return value
