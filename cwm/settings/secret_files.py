"""Secrets in files, as container platforms mount them: ``<VARIABLE>_FILE`` names the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

SUFFIX: Final = "_FILE"

_MOST_BYTES: Final = 64 * 1024


def secret_of(variable: str, environ: Mapping[str, str]) -> str | None:
    """The value of ``variable``, or the content of the file ``<variable>_FILE``; None when neither is set.

    Trailing line ends are removed. Raises ValueError, without the value, when both are set, or the file cannot be
    read or is empty.
    """
    value, path = environ.get(variable, ""), environ.get(variable + SUFFIX, "")
    if not path:
        return value or None
    if value:
        raise ValueError(f"{variable} and {variable}{SUFFIX} are both set; set one of them")
    return _content(Path(path).expanduser(), f"{variable}{SUFFIX} names {path}, which")


def _content(path: Path, subject: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{subject} cannot be read: {error.strerror}") from None
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"{subject} has more than {_MOST_BYTES} bytes")
    try:
        value = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{subject} is not UTF-8") from None
    if not value:
        raise ValueError(f"{subject} is empty")
    return value
